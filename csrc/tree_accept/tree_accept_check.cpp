#include "common/checks.h"
#include "tree_accept/tree_accept.h"

namespace tlt_engine {

void check_tree_accept(const at::Tensor& parent_rows, const at::Tensor& draft_token_ids,
                       const at::Tensor& target_token_ids, const at::Tensor& cu_num_rows, int64_t max_accepted) {
  const char* op = "tree_accept";
  check_vector(parent_rows, op, "parent_rows", at::kInt);
  check_vector(draft_token_ids, op, "draft_token_ids", at::kLong);
  check_vector(target_token_ids, op, "target_token_ids", at::kLong);
  check_vector(cu_num_rows, op, "cu_num_rows", at::kInt);
  const int64_t total_rows = parent_rows.size(0);
  check_length(draft_token_ids, op, "draft_token_ids", total_rows);
  check_length(target_token_ids, op, "target_token_ids", total_rows);
  TORCH_CHECK(cu_num_rows.size(0) >= 1, op, ": cu_num_rows must have num_reqs + 1 entries, but is empty");
  check_same_device(draft_token_ids, op, "draft_token_ids", parent_rows);
  check_same_device(target_token_ids, op, "target_token_ids", parent_rows);
  check_same_device(cu_num_rows, op, "cu_num_rows", parent_rows);
  TORCH_CHECK(max_accepted >= 0, op, ": max_accepted must not be negative, but is ", max_accepted);
  if (!cu_num_rows.is_cpu()) return;
  check_prefix_sums(cu_num_rows, op, "cu_num_rows", total_rows);
  const int32_t* sums = cu_num_rows.const_data_ptr<int32_t>();
  for (int64_t req = 0; req + 1 < cu_num_rows.size(0); ++req) {
    const int32_t num_rows = sums[req + 1] - sums[req];
    TORCH_CHECK(num_rows - 1 <= max_accepted, op, ": max_accepted must be at least ", num_rows - 1, " for request ",
                req, " of ", num_rows, " rows, but is ", max_accepted);
  }
}

}  // namespace tlt_engine
