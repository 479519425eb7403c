// Entry points of tree_accept; the contract is documented in ops.py.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace tlt_engine {

void check_tree_accept(const at::Tensor& parent_rows, const at::Tensor& draft_token_ids,
                       const at::Tensor& target_token_ids, const at::Tensor& cu_num_rows, int64_t max_accepted);

std::tuple<at::Tensor, at::Tensor> tree_accept_cpu(const at::Tensor& parent_rows, const at::Tensor& draft_token_ids,
                                                   const at::Tensor& target_token_ids, const at::Tensor& cu_num_rows,
                                                   int64_t max_accepted);

std::tuple<at::Tensor, at::Tensor> tree_accept_cuda(const at::Tensor& parent_rows, const at::Tensor& draft_token_ids,
                                                    const at::Tensor& target_token_ids, const at::Tensor& cu_num_rows,
                                                    int64_t max_accepted);

}  // namespace tlt_engine
