#include <limits>

#include "common/checks.h"
#include "gumbel_argmax/gumbel_argmax.h"

namespace tlt_engine {

void check_gumbel_argmax(const at::Tensor& logits, const at::Tensor& temperature, const at::Tensor& seeds,
                         const at::Tensor& positions) {
  const char* op = "gumbel_argmax";
  TORCH_CHECK(logits.dim() == 2, op, ": logits must be [num_rows, vocab_size], but has shape ", logits.sizes());
  const at::ScalarType dtype = logits.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf, op,
              ": logits must be float32, bfloat16 or float16, but is ", dtype);
  const int64_t vocab_size = logits.size(1);
  TORCH_CHECK(vocab_size >= 1 && vocab_size <= std::numeric_limits<int32_t>::max() - 64, op,
              ": vocab_size must be in [1, 2^31 - 64), but is ", vocab_size);
  TORCH_CHECK(vocab_size == 1 || logits.stride(1) == 1, op,
              ": logits must be contiguous along the vocabulary, but has stride ", logits.stride(1));
  check_vector(temperature, op, "temperature", at::kFloat);
  check_vector(seeds, op, "seeds", at::kLong);
  check_vector(positions, op, "positions", at::kLong);
  const int64_t num_rows = logits.size(0);
  check_length(temperature, op, "temperature", num_rows);
  check_length(seeds, op, "seeds", num_rows);
  check_length(positions, op, "positions", num_rows);
  check_same_device(temperature, op, "temperature", logits);
  check_same_device(seeds, op, "seeds", logits);
  check_same_device(positions, op, "positions", logits);
}

}  // namespace tlt_engine
