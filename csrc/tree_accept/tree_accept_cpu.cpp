#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "tree_accept/tree_accept.cuh"
#include "tree_accept/tree_accept.h"

namespace tlt_engine {

std::tuple<at::Tensor, at::Tensor> tree_accept_cpu(const at::Tensor& parent_rows, const at::Tensor& draft_token_ids,
                                                   const at::Tensor& target_token_ids, const at::Tensor& cu_num_rows,
                                                   int64_t max_accepted) {
  check_tree_accept(parent_rows, draft_token_ids, target_token_ids, cu_num_rows, max_accepted);
  const int64_t num_reqs = cu_num_rows.size(0) - 1;
  at::Tensor accepted_rows = at::full({num_reqs, max_accepted}, -1, parent_rows.options());
  at::Tensor num_accepted = at::empty({num_reqs}, parent_rows.options());
  const int32_t* parents = parent_rows.const_data_ptr<int32_t>();
  const int64_t* drafts = draft_token_ids.const_data_ptr<int64_t>();
  const int64_t* targets = target_token_ids.const_data_ptr<int64_t>();
  const int32_t* sums = cu_num_rows.const_data_ptr<int32_t>();
  int32_t* paths = accepted_rows.mutable_data_ptr<int32_t>();
  int32_t* counts = num_accepted.mutable_data_ptr<int32_t>();
  // A walk over 16 rows takes tens of nanoseconds; below 64 requests a second thread costs more than it brings.
  at::parallel_for(0, num_reqs, 64, [&](int64_t begin, int64_t end) {
    for (int64_t req = begin; req < end; ++req) {
      const int32_t first = sums[req];
      counts[req] = accepted_path(parents + first, drafts + first, targets + first, sums[req + 1] - first,
                                  paths + req * max_accepted);
    }
  });
  return {accepted_rows, num_accepted};
}

}  // namespace tlt_engine
