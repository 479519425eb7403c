#include "common/checks.h"
#include "window_attention/window_attention.h"

namespace tlt_engine {

namespace {

void check_cache(const at::Tensor& cache, const char* name) {
  TORCH_CHECK(cache.dim() == 4, "window_attention: ", name, " must have 4 dimensions, but has shape ", cache.sizes());
  TORCH_CHECK(cache.scalar_type() == at::kFloat, "window_attention: ", name, " must be float32, but is ",
              cache.scalar_type());
  TORCH_CHECK(cache.is_contiguous(), "window_attention: ", name, " must be contiguous, but has strides ",
              cache.strides());
}

}  // namespace

void check_window_attention(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                            const at::Tensor& slots, const at::Tensor& starts, const at::Tensor& ends,
                            const at::Tensor& visible, int64_t num_scratch, int64_t depth) {
  const char* op = "window_attention";
  TORCH_CHECK(query.dim() == 4, op, ": query must be [num_reqs, num_nodes, num_heads, head_size], but has shape ",
              query.sizes());
  TORCH_CHECK(query.scalar_type() == at::kFloat, op, ": query must be float32, but is ", query.scalar_type());
  TORCH_CHECK(query.is_contiguous(), op, ": query must be contiguous, but has strides ", query.strides());
  check_cache(keys, "keys");
  check_cache(values, "values");
  const int64_t num_places = values.size(2), head_size = query.size(3);
  TORCH_CHECK(values.size(3) == head_size, op, ": values must have head size ", head_size, ", but has ",
              values.size(3));
  TORCH_CHECK(keys.size(0) == values.size(0) && keys.size(1) == values.size(1) && keys.size(2) == head_size &&
                  keys.size(3) == num_places,
              op, ": keys must have shape [", values.size(0), ", ", values.size(1), ", ", head_size, ", ", num_places,
              "], but has ", keys.sizes());
  TORCH_CHECK(query.size(2) % keys.size(1) == 0, op, ": ", query.size(2), " heads cannot share ", keys.size(1),
              " key-value heads");
  const int64_t num_reqs = query.size(0);
  check_vector(slots, op, "slots", at::kLong);
  check_vector(starts, op, "starts", at::kLong);
  check_vector(ends, op, "ends", at::kLong);
  check_length(slots, op, "slots", num_reqs);
  check_length(starts, op, "starts", num_reqs);
  check_length(ends, op, "ends", num_reqs);
  TORCH_CHECK(visible.dim() == 3 && visible.size(0) == num_reqs && visible.size(1) == query.size(1), op,
              ": visible must be [", num_reqs, ", ", query.size(1), ", num_seen], but has shape ", visible.sizes());
  TORCH_CHECK(visible.scalar_type() == at::kBool && visible.is_contiguous(), op,
              ": visible must be bool and contiguous, but is ", visible.scalar_type(), " with strides ",
              visible.strides());
  TORCH_CHECK(num_scratch >= visible.size(2) && num_scratch < num_places, op, ": num_scratch must be in [",
              visible.size(2), ", ", num_places, "), but is ", num_scratch);
  TORCH_CHECK(depth >= 0, op, ": depth must not be negative, but is ", depth);
  for (int64_t req = 0; req < num_reqs; ++req) {
    const int64_t slot = slots.const_data_ptr<int64_t>()[req];
    const int64_t start = starts.const_data_ptr<int64_t>()[req], end = ends.const_data_ptr<int64_t>()[req];
    TORCH_CHECK(slot >= 0 && slot < keys.size(0), op, ": slots must be in [0, ", keys.size(0), "), but request ", req,
                " has ", slot);
    TORCH_CHECK(0 <= start && start <= end && end - start <= num_places - num_scratch, op, ": request ", req,
                " must hold at most ", num_places - num_scratch, " positions, but holds [", start, ", ", end, ")");
  }
}

}  // namespace tlt_engine
