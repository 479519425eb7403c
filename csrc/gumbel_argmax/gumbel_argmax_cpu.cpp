// The CPU twin. Most blocks of the vocabulary cannot hold the winner, and the noise words show it before any logarithm
// is taken: a token beats the best score only if its exponential variate is at most exp(logit / T - best), and that
// variate is at least its uniform. What remains of a row is one pass for the block maxima and one for Philox.
#include "gumbel_argmax/noise_block.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <vector>

#include "common/checks.h"
#include "gumbel_argmax/gumbel_argmax.h"

namespace tlt_engine {

namespace {

// Rows of one task share their noise; more would save Philox work but leave threads idle and grow the scratch.
constexpr int kRowsPerTask = 8;

// A row's vocabulary in full blocks; the last one is a copy padded with -inf if the vocabulary does not fill it.
template <typename scalar_t>
struct RowBlocks {
  const scalar_t* logits;
  int64_t num_full;
  int64_t num_blocks;
  scalar_t tail[kNoiseBlock];

  RowBlocks(const scalar_t* row_logits, int64_t vocab_size)
      : logits(row_logits),
        num_full(vocab_size / kNoiseBlock),
        num_blocks((vocab_size + kNoiseBlock - 1) / kNoiseBlock) {
    const int64_t num_left = vocab_size - num_full * kNoiseBlock;
    std::copy_n(logits + num_full * kNoiseBlock, num_left, tail);
    std::fill_n(tail + num_left, kNoiseBlock - num_left, static_cast<scalar_t>(-INFINITY));
  }

  const scalar_t* block(int64_t index) const { return index < num_full ? logits + index * kNoiseBlock : tail; }

  // Fills maxima and returns the first block that holds the largest logit.
  int64_t find_maxima(float* maxima) const {
    int64_t highest = 0;
    for (int64_t index = 0; index < num_blocks; ++index) {
      maxima[index] = block_max(block(index));
      if (maxima[index] > maxima[highest]) highest = index;
    }
    return highest;
  }
};

template <typename scalar_t>
int64_t greedy_token(const RowBlocks<scalar_t>& blocks, float* maxima) {
  const int64_t highest = blocks.find_maxima(maxima);
  const scalar_t* logits = blocks.block(highest);
  for (int64_t token = 0; token < kNoiseBlock; ++token) {
    if (static_cast<float>(logits[token]) == maxima[highest]) return highest * kNoiseBlock + token;
  }
  return 0;  // only NaN
}

// One row while the noise blocks pass by.
template <typename scalar_t>
class SampledRow {
 public:
  SampledRow(const scalar_t* logits, int64_t vocab_size, float temperature, int64_t seed, int64_t position)
      : blocks_(logits, vocab_size), temperature_(temperature), weights_(blocks_.num_blocks) {
    first_block_ = blocks_.find_maxima(weights_.data());
    max_score_ = weights_[first_block_] / temperature;
    for (float& weight : weights_) weight = weight / temperature - max_score_;
    at::vec::map<float>([](FloatVec exponent) { return exponent.exp_u20(); }, weights_.data(), weights_.data(),
                        blocks_.num_blocks);
    uint32_t words[kNoiseBlock];
    fill_noise_words(seed, position, static_cast<uint32_t>(first_block_), words);
    evaluate(first_block_, words);
  }

  // Whether a block whose smallest noise word is that may hold a better token. Written so that NaN says yes.
  bool may_win(int64_t block, uint32_t smallest_word) const {
    return block != first_block_ && !(weights_[block] * word_limit_ < static_cast<float>(smallest_word));
  }

  void evaluate(int64_t block, const uint32_t (&words)[kNoiseBlock]) {
    best_ = evaluate_block(blocks_.block(block), temperature_, words, static_cast<int32_t>(block * kNoiseBlock), best_);
    // The margin covers the rounding of the score, of the noise (both within 1e-5) and of exp_u20; see may_win.
    const float margin = 1e-4f + 0x1p-22f * std::abs(best_.score);
    word_limit_ = std::exp(max_score_ - best_.score + margin) * 0x1p32f;
  }

  int64_t token() const { return best_.token; }

 private:
  RowBlocks<scalar_t> blocks_;
  float temperature_;
  std::vector<float> weights_;  // per block: exp(its largest logit / T - the row's largest logit / T)
  int64_t first_block_;
  float max_score_;
  float word_limit_;  // words above weight * word_limit cannot win
  Candidate best_ = no_candidate();
};

template <typename scalar_t>
void sample_rows(const at::Tensor& logits, const int64_t* rows, int64_t num_rows, const float* temperature,
                 int64_t seed, int64_t position, int64_t* token_ids) {
  const int64_t vocab_size = logits.size(1);
  std::vector<SampledRow<scalar_t>> samples;
  samples.reserve(num_rows);
  for (int64_t index = 0; index < num_rows; ++index) {
    samples.emplace_back(logits.const_data_ptr<scalar_t>() + rows[index] * logits.stride(0), vocab_size,
                         temperature[rows[index]], seed, position);
  }
  uint32_t words[kNoiseBlock];
  for (int64_t block = 0; block * kNoiseBlock < vocab_size; ++block) {
    const uint32_t smallest = fill_noise_words(seed, position, static_cast<uint32_t>(block), words);
    for (SampledRow<scalar_t>& sample : samples) {
      if (sample.may_win(block, smallest)) sample.evaluate(block, words);
    }
  }
  for (int64_t index = 0; index < num_rows; ++index) token_ids[rows[index]] = samples[index].token();
}

// Rows in the order they are worked off, cut into tasks: a greedy row, or up to kRowsPerTask sampled rows of one noise.
struct RowTasks {
  std::vector<int64_t> rows;
  std::vector<int64_t> starts;

  RowTasks(const float* temperature, const int64_t* seeds, const int64_t* positions, int64_t num_rows)
      : rows(num_rows) {
    const auto noise_key = [&](int64_t row) {
      const bool is_greedy = temperature[row] < kGreedyTemperature;
      return is_greedy ? std::make_tuple(false, row, int64_t{0}) : std::make_tuple(true, seeds[row], positions[row]);
    };
    std::iota(rows.begin(), rows.end(), 0);
    std::stable_sort(rows.begin(), rows.end(), [&](int64_t a, int64_t b) { return noise_key(a) < noise_key(b); });
    for (int64_t index = 0; index < num_rows; ++index) {
      if (index == 0 || noise_key(rows[index]) != noise_key(rows[index - 1]) || index - starts.back() == kRowsPerTask) {
        starts.push_back(index);
      }
    }
    starts.push_back(num_rows);
  }
};

template <typename scalar_t>
void argmax_rows(const at::Tensor& logits, const float* temperature, const int64_t* seeds, const int64_t* positions,
                 int64_t* token_ids) {
  const int64_t vocab_size = logits.size(1);
  const RowTasks tasks(temperature, seeds, positions, logits.size(0));
  at::parallel_for(0, static_cast<int64_t>(tasks.starts.size()) - 1, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> maxima((vocab_size + kNoiseBlock - 1) / kNoiseBlock);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t* rows = tasks.rows.data() + tasks.starts[task];
      const int64_t row = rows[0];
      if (temperature[row] < kGreedyTemperature) {
        const scalar_t* row_logits = logits.const_data_ptr<scalar_t>() + row * logits.stride(0);
        token_ids[row] = greedy_token(RowBlocks<scalar_t>(row_logits, vocab_size), maxima.data());
      } else {
        sample_rows<scalar_t>(logits, rows, tasks.starts[task + 1] - tasks.starts[task], temperature, seeds[row],
                              positions[row], token_ids);
      }
    }
  });
}

}  // namespace

at::Tensor gumbel_argmax_cpu(const at::Tensor& logits, const at::Tensor& temperature, const at::Tensor& seeds,
                             const at::Tensor& positions) {
  check_gumbel_argmax(logits, temperature, seeds, positions);
  at::Tensor token_ids = at::empty({logits.size(0)}, seeds.options());
  if (logits.size(0) == 0) return token_ids;
  const auto argmax = [&](auto run) {
    run(logits, temperature.const_data_ptr<float>(), seeds.const_data_ptr<int64_t>(),
        positions.const_data_ptr<int64_t>(), token_ids.mutable_data_ptr<int64_t>());
  };
  switch (logits.scalar_type()) {
    case at::kBFloat16:
      argmax(argmax_rows<at::BFloat16>);
      break;
    case at::kHalf:
      argmax(argmax_rows<at::Half>);
      break;
    default:
      argmax(argmax_rows<float>);
  }
  return token_ids;
}

at::Tensor gumbel_noise_cpu(const at::Tensor& seeds, const at::Tensor& positions, const at::Tensor& token_ids) {
  const char* op = "gumbel_noise";
  check_vector(seeds, op, "seeds", at::kLong);
  check_vector(positions, op, "positions", at::kLong);
  check_vector(token_ids, op, "token_ids", at::kLong);
  check_length(positions, op, "positions", seeds.size(0));
  check_length(token_ids, op, "token_ids", seeds.size(0));
  at::Tensor noise = at::empty({seeds.size(0)}, seeds.options().dtype(at::kFloat));
  const int64_t* seed = seeds.const_data_ptr<int64_t>();
  const int64_t* position = positions.const_data_ptr<int64_t>();
  const int64_t* token = token_ids.const_data_ptr<int64_t>();
  float* out = noise.mutable_data_ptr<float>();
  for (int64_t i = 0; i < seeds.size(0); ++i) out[i] = token_noise(seed[i], position[i], token[i]);
  return noise;
}

}  // namespace tlt_engine
