#include "common/checks.h"
#include "tree_build/tree_build.h"

namespace tlt_engine {

namespace {

void check_matrix(const at::Tensor& tensor, const char* name, at::ScalarType dtype) {
  TORCH_CHECK(tensor.dim() == 2, "tree_build: ", name, " must have 2 dimensions, but has shape ", tensor.sizes());
  TORCH_CHECK(tensor.scalar_type() == dtype, "tree_build: ", name, " must be ", dtype, ", but is ",
              tensor.scalar_type());
  TORCH_CHECK(tensor.is_contiguous(), "tree_build: ", name, " must be contiguous, but has strides ", tensor.strides());
}

}  // namespace

void check_tree_build(const at::Tensor& scores, const at::Tensor& parents, const at::Tensor& max_nodes, int64_t width) {
  const char* op = "tree_build";
  check_matrix(scores, "scores", at::kFloat);
  check_matrix(parents, "parents", at::kInt);
  TORCH_CHECK(parents.sizes() == scores.sizes(), op, ": parents must have shape ", scores.sizes(), ", but has ",
              parents.sizes());
  check_vector(max_nodes, op, "max_nodes", at::kInt);
  check_length(max_nodes, op, "max_nodes", scores.size(0));
  check_same_device(parents, op, "parents", scores);
  check_same_device(max_nodes, op, "max_nodes", scores);
  TORCH_CHECK(width >= 0, op, ": width must not be negative, but is ", width);
  if (!parents.is_cpu()) return;
  const int32_t* values = parents.const_data_ptr<int32_t>();
  const int64_t num_candidates = scores.size(1);
  for (int64_t entry = 0; entry < parents.numel(); ++entry) {
    TORCH_CHECK(values[entry] >= -1 && values[entry] < entry % num_candidates, op, ": parents must stand before their ",
                "children, but candidate ", entry % num_candidates, " of request ", entry / num_candidates, " names ",
                values[entry]);
  }
}

}  // namespace tlt_engine
