#include "common/checks.h"
#include "draft_topk/draft_topk.h"

namespace tlt_engine {

void check_draft_topk(const at::Tensor& logits, const at::Tensor& vocabulary, const at::Tensor& temperature,
                      const at::Tensor& seeds, const at::Tensor& positions, int64_t top_k) {
  const char* op = "draft_topk";
  TORCH_CHECK(logits.dim() == 3, op, ": logits must be [num_reqs, num_nodes, draft_vocab], but has shape ",
              logits.sizes());
  TORCH_CHECK(logits.scalar_type() == at::kFloat, op, ": logits must be float32, but is ", logits.scalar_type());
  TORCH_CHECK(logits.is_contiguous(), op, ": logits must be contiguous, but has strides ", logits.strides());
  check_vector(vocabulary, op, "vocabulary", at::kLong);
  check_length(vocabulary, op, "vocabulary", logits.size(2));
  check_vector(temperature, op, "temperature", at::kFloat);
  check_vector(seeds, op, "seeds", at::kLong);
  check_vector(positions, op, "positions", at::kLong);
  check_length(temperature, op, "temperature", logits.size(0));
  check_length(seeds, op, "seeds", logits.size(0));
  check_length(positions, op, "positions", logits.size(0));
  TORCH_CHECK(top_k >= 1 && top_k <= logits.size(2), op, ": top_k must be in [1, ", logits.size(2), "], but is ",
              top_k);
  const int64_t* token_ids = vocabulary.const_data_ptr<int64_t>();
  for (int64_t index = 0; index < vocabulary.size(0); ++index) {
    TORCH_CHECK(token_ids[index] >= 0 && (index == 0 || token_ids[index] > token_ids[index - 1]), op,
                ": vocabulary must ascend from 0 or more, but entry ", index, " is ", token_ids[index]);
  }
}

}  // namespace tlt_engine
