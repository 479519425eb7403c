// Entry points of draft_topk; the contract is documented in ops.py.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace tlt_engine {

void check_draft_topk(const at::Tensor& logits, const at::Tensor& vocabulary, const at::Tensor& temperature,
                      const at::Tensor& seeds, const at::Tensor& positions, int64_t top_k);

std::tuple<at::Tensor, at::Tensor> draft_topk_cpu(const at::Tensor& logits, const at::Tensor& vocabulary,
                                                  const at::Tensor& temperature, const at::Tensor& seeds,
                                                  const at::Tensor& positions, int64_t top_k);

}  // namespace tlt_engine
