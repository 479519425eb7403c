// Entry points of tree_build; the contract is documented in ops.py.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace tlt_engine {

void check_tree_build(const at::Tensor& scores, const at::Tensor& parents, const at::Tensor& max_nodes, int64_t width);

std::tuple<at::Tensor, at::Tensor> tree_build_cpu(const at::Tensor& scores, const at::Tensor& parents,
                                                  const at::Tensor& max_nodes, int64_t width);

std::tuple<at::Tensor, at::Tensor> tree_build_cuda(const at::Tensor& scores, const at::Tensor& parents,
                                                   const at::Tensor& max_nodes, int64_t width);

}  // namespace tlt_engine
