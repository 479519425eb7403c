#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "tree_accept/tree_accept.cuh"
#include "tree_accept/tree_accept.h"

namespace tlt_engine {

constexpr int kThreads = 64;                       // one pass over the widest tree we draft
constexpr int64_t kSharedMemoryBytes = 48 * 1024;  // what a block gets without opting in

std::tuple<at::Tensor, at::Tensor> tree_accept_cuda(const at::Tensor& parent_rows, const at::Tensor& draft_token_ids,
                                                    const at::Tensor& target_token_ids, const at::Tensor& cu_num_rows,
                                                    int64_t max_accepted) {
  check_tree_accept(parent_rows, draft_token_ids, target_token_ids, cu_num_rows, max_accepted);
  const int64_t shared_bytes = tree_accept_shared_bytes(max_accepted + 1);
  TORCH_CHECK(shared_bytes <= kSharedMemoryBytes, "tree_accept: max_accepted must be below ",
              kSharedMemoryBytes / tree_accept_shared_bytes(1), " on CUDA, but is ", max_accepted);
  const c10::cuda::CUDAGuard guard(parent_rows.device());
  const int64_t num_reqs = cu_num_rows.size(0) - 1;
  at::Tensor accepted_rows = at::empty({num_reqs, max_accepted}, parent_rows.options());
  at::Tensor num_accepted = at::empty({num_reqs}, parent_rows.options());
  if (num_reqs == 0) return {accepted_rows, num_accepted};
  tree_accept_kernel<<<num_reqs, kThreads, shared_bytes, c10::cuda::getCurrentCUDAStream()>>>(
      parent_rows.const_data_ptr<int32_t>(), draft_token_ids.const_data_ptr<int64_t>(),
      target_token_ids.const_data_ptr<int64_t>(), cu_num_rows.const_data_ptr<int32_t>(),
      static_cast<int32_t>(max_accepted), accepted_rows.mutable_data_ptr<int32_t>(),
      num_accepted.mutable_data_ptr<int32_t>());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {accepted_rows, num_accepted};
}

}  // namespace tlt_engine
