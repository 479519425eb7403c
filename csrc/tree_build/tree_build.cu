#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "tree_build/tree_build.cuh"
#include "tree_build/tree_build.h"

namespace tlt_engine {

constexpr int kThreads = 256;                      // candidates are some hundreds
constexpr int64_t kSharedMemoryBytes = 48 * 1024;  // what a block gets without opting in

std::tuple<at::Tensor, at::Tensor> tree_build_cuda(const at::Tensor& scores, const at::Tensor& parents,
                                                   const at::Tensor& max_nodes, int64_t width) {
  check_tree_build(scores, parents, max_nodes, width);
  const int64_t num_reqs = scores.size(0);
  const int64_t num_candidates = scores.size(1);
  const int64_t shared_bytes = tree_build_shared_bytes(num_candidates);
  TORCH_CHECK(shared_bytes <= kSharedMemoryBytes, "tree_build: a request may have ",
              kSharedMemoryBytes / tree_build_shared_bytes(1), " candidates on CUDA, but has ", num_candidates);
  const c10::cuda::CUDAGuard guard(scores.device());
  at::Tensor nodes = at::empty({num_reqs, width}, parents.options());
  at::Tensor parent_places = at::empty({num_reqs, width}, parents.options());
  if (num_reqs == 0) return {nodes, parent_places};
  tree_build_kernel<<<num_reqs, kThreads, shared_bytes, c10::cuda::getCurrentCUDAStream()>>>(
      scores.const_data_ptr<float>(), parents.const_data_ptr<int32_t>(), max_nodes.const_data_ptr<int32_t>(),
      static_cast<int32_t>(num_candidates), static_cast<int32_t>(width), nodes.mutable_data_ptr<int32_t>(),
      parent_places.mutable_data_ptr<int32_t>());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {nodes, parent_places};
}

}  // namespace tlt_engine
