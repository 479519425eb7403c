// Entry points of gumbel_argmax; the contract is documented in ops.py.
#pragma once

#include <ATen/core/Tensor.h>

namespace tlt_engine {

void check_gumbel_argmax(const at::Tensor& logits, const at::Tensor& temperature, const at::Tensor& seeds,
                         const at::Tensor& positions);

at::Tensor gumbel_argmax_cpu(const at::Tensor& logits, const at::Tensor& temperature, const at::Tensor& seeds,
                             const at::Tensor& positions);

// The noise that gumbel_argmax adds to single tokens, for whoever wants to know it before the logits are there.
at::Tensor gumbel_noise_cpu(const at::Tensor& seeds, const at::Tensor& positions, const at::Tensor& token_ids);

at::Tensor gumbel_argmax_cuda(const at::Tensor& logits, const at::Tensor& temperature, const at::Tensor& seeds,
                              const at::Tensor& positions);

}  // namespace tlt_engine
