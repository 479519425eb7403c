#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "gumbel_argmax/gumbel_argmax.cuh"
#include "gumbel_argmax/gumbel_argmax.h"

namespace tlt_engine {

constexpr int64_t kTargetBlocks = 1024;  // fills 132 SMs with room to balance
static_assert(sizeof(Candidate) == sizeof(int64_t), "a candidate is allocated as one int64");

at::Tensor gumbel_argmax_cuda(const at::Tensor& logits, const at::Tensor& temperature, const at::Tensor& seeds,
                              const at::Tensor& positions) {
  check_gumbel_argmax(logits, temperature, seeds, positions);
  const c10::cuda::CUDAGuard guard(logits.device());
  const int64_t num_rows = logits.size(0);
  const int64_t vocab_size = logits.size(1);
  at::Tensor token_ids = at::empty({num_rows}, seeds.options());
  if (num_rows == 0) return token_ids;
  constexpr int64_t kTokensPerPass = static_cast<int64_t>(kArgmaxThreads) * kNoiseWords;
  const int64_t max_splits = (vocab_size + kTokensPerPass - 1) / kTokensPerPass;
  const int64_t num_splits = std::clamp<int64_t>(kTargetBlocks / num_rows, 1, max_splits);
  at::Tensor partial = at::empty({num_rows, num_splits}, seeds.options());
  auto* candidates = reinterpret_cast<Candidate*>(partial.mutable_data_ptr<int64_t>());
  const dim3 grid(num_splits, num_rows);
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const auto launch = [&](auto kernel, const auto* data) {
    kernel<<<grid, kArgmaxThreads, 0, stream>>>(data, logits.stride(0), static_cast<int32_t>(vocab_size),
                                                temperature.const_data_ptr<float>(), seeds.const_data_ptr<int64_t>(),
                                                positions.const_data_ptr<int64_t>(), candidates);
  };
  switch (logits.scalar_type()) {
    case at::kBFloat16:
      launch(gumbel_argmax_kernel<at::BFloat16>, logits.const_data_ptr<at::BFloat16>());
      break;
    case at::kHalf:
      launch(gumbel_argmax_kernel<at::Half>, logits.const_data_ptr<at::Half>());
      break;
    default:
      launch(gumbel_argmax_kernel<float>, logits.const_data_ptr<float>());
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  gumbel_argmax_merge_kernel<<<num_rows, kArgmaxThreads, 0, stream>>>(candidates, static_cast<int32_t>(num_splits),
                                                                      token_ids.mutable_data_ptr<int64_t>());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return token_ids;
}

}  // namespace tlt_engine
