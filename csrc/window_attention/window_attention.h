// Entry points of window_attention; the contract is documented in ops.py.
#pragma once

#include <ATen/core/Tensor.h>

namespace tlt_engine {

void check_window_attention(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                            const at::Tensor& slots, const at::Tensor& starts, const at::Tensor& ends,
                            const at::Tensor& visible, int64_t num_scratch, int64_t depth);

at::Tensor window_attention_cpu(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                                const at::Tensor& slots, const at::Tensor& starts, const at::Tensor& ends,
                                const at::Tensor& visible, int64_t num_scratch, int64_t depth);

}  // namespace tlt_engine
