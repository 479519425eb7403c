#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "kv_compact/kv_compact.h"

namespace tlt_engine {

constexpr int kThreads = 128;  // 16-byte units: a slot of 8 heads x 128 bfloat16 in one pass

void kv_compact_cuda(at::TensorList planes, const at::Tensor& src_slots, const at::Tensor& dst_slots,
                     const at::Tensor& cu_moves) {
  check_kv_compact(planes, src_slots, dst_slots, cu_moves);
  const int64_t num_planes = static_cast<int64_t>(planes.size());
  const int64_t num_reqs = cu_moves.size(0) - 1;
  if (num_reqs == 0 || src_slots.size(0) == 0) return;
  const c10::cuda::CUDAGuard guard(src_slots.device());
  for (int64_t first = 0; first < num_planes; first += kPlanesPerLaunch) {
    const int64_t num_in_chunk = std::min<int64_t>(num_planes - first, kPlanesPerLaunch);
    PlaneChunk chunk{};
    for (int64_t plane = 0; plane < num_in_chunk; ++plane) chunk.plane[plane] = describe_plane(planes[first + plane]);
    const dim3 grid(num_in_chunk, num_reqs);
    kv_compact_kernel<<<grid, kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
        chunk, src_slots.const_data_ptr<int64_t>(), dst_slots.const_data_ptr<int64_t>(),
        cu_moves.const_data_ptr<int32_t>());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
}

}  // namespace tlt_engine
