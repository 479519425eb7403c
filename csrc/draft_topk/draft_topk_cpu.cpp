// Task: of each node's logits over the draft vocabulary the top_k tokens with their log-probability, after the noise
// that the target's draw will add: log-softmax(logits / temperature + noise).
//
// Memory: logits [num_reqs, num_nodes, draft_vocab]; the nodes of a request share one noise vector, which is made once.
//
// Invariant: tokens are ranked by (value, smaller index first). A NaN among the logits of a node makes all its
// log-probabilities NaN, so that whoever reads them notices.
//
// Parallelisation: noise over pieces of the draft vocabulary, then ranking over nodes.
#include "draft_topk/draft_topk.h"

#include "gumbel_argmax/noise_block.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace tlt_engine {

namespace {

constexpr int64_t kNoiseGrain = 2048;
constexpr int64_t kNodeGrain = 2;
constexpr int64_t kChunk = 64;

// -log(-log1p(-uniform)) in place.
void gumbel_in_place(float* uniforms, int64_t length) {
  const auto transform = [](FloatVec uniform) { return uniform.neg().log1p().neg().log().neg(); };
  at::vec::map<float>(transform, uniforms, uniforms, length);
}

// The noise of the tokens vocabulary[begin, end), which ascend: each block of words is made once.
void fill_noise(const int64_t* vocabulary, int64_t begin, int64_t end, int64_t seed, int64_t position, float* noise) {
  uint32_t words[kNoiseBlock];
  int64_t block = -1;
  for (int64_t index = begin; index < end; ++index) {
    if (vocabulary[index] / kNoiseBlock != block) {
      block = vocabulary[index] / kNoiseBlock;
      fill_noise_words(seed, position, static_cast<uint32_t>(block), words);
    }
    const uint32_t word = words[vocabulary[index] % kNoiseBlock];
    noise[index] = std::min((static_cast<float>(word) + 0.5f) * kWordScale, kMaxUniform);
  }
  gumbel_in_place(noise + begin, end - begin);
}

// The best entries seen so far, the best first.
class Ranking {
 public:
  Ranking(float* values, int64_t* indices, int64_t size) : values_(values), indices_(indices), size_(size) {
    std::fill_n(values_, size_, -std::numeric_limits<float>::infinity());
    for (int64_t place = 0; place < size_; ++place) indices_[place] = place;
  }

  bool is_full() const { return num_ == size_; }
  float smallest() const { return values_[size_ - 1]; }  // once full

  // Entries must come in ascending order of index.
  void offer(float value, int64_t index) {
    if (is_full() && !(value > smallest())) return;
    int64_t place = is_full() ? size_ - 1 : num_++;
    for (; place > 0 && value > values_[place - 1]; --place) {
      values_[place] = values_[place - 1];
      indices_[place] = indices_[place - 1];
    }
    values_[place] = value;
    indices_[place] = index;
  }

 private:
  float* values_;
  int64_t* indices_;
  int64_t size_;
  int64_t num_ = 0;
};

void rank_node(const float* values, int64_t length, int64_t top_k, float* scores, int64_t* indices) {
  Ranking ranking(scores, indices, top_k);
  float highest = -std::numeric_limits<float>::infinity();
  for (int64_t first = 0; first < length; first += kChunk) {
    const int64_t last = std::min(length, first + kChunk);
    float chunk_max = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : chunk_max)
    for (int64_t index = first; index < last; ++index)
      chunk_max = values[index] > chunk_max ? values[index] : chunk_max;
    highest = std::max(highest, chunk_max);
    if (ranking.is_full() && !(chunk_max > ranking.smallest())) continue;
    for (int64_t index = first; index < last; ++index) ranking.offer(values[index], index);
  }
  const float sum =
      at::vec::map_reduce_all<float>([highest](FloatVec value) { return (value - FloatVec(highest)).exp(); },
                                     [](FloatVec a, FloatVec b) { return a + b; }, values, length);
  const float log_sum = highest + std::log(sum);
  for (int64_t place = 0; place < top_k; ++place) scores[place] -= log_sum;
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> draft_topk_cpu(const at::Tensor& logits, const at::Tensor& vocabulary,
                                                  const at::Tensor& temperature, const at::Tensor& seeds,
                                                  const at::Tensor& positions, int64_t top_k) {
  check_draft_topk(logits, vocabulary, temperature, seeds, positions, top_k);
  const int64_t num_reqs = logits.size(0), num_nodes = logits.size(1), length = logits.size(2);
  at::Tensor scores = at::empty({num_reqs, num_nodes, top_k}, logits.options());
  at::Tensor indices = at::empty({num_reqs, num_nodes, top_k}, vocabulary.options());
  const float* all_logits = logits.const_data_ptr<float>();
  const float* temperatures = temperature.const_data_ptr<float>();
  float* all_scores = scores.mutable_data_ptr<float>();
  int64_t* all_indices = indices.mutable_data_ptr<int64_t>();
  std::vector<float> noise(length);
  for (int64_t req = 0; req < num_reqs; ++req) {
    const bool is_greedy = temperatures[req] < kGreedyTemperature;
    if (!is_greedy) {
      const int64_t seed = seeds.const_data_ptr<int64_t>()[req];
      const int64_t position = positions.const_data_ptr<int64_t>()[req];
      at::parallel_for(0, length, kNoiseGrain, [&](int64_t begin, int64_t end) {
        fill_noise(vocabulary.const_data_ptr<int64_t>(), begin, end, seed, position, noise.data());
      });
    }
    at::parallel_for(0, num_nodes, kNodeGrain, [&](int64_t begin, int64_t end) {
      std::vector<float> values(is_greedy ? 0 : length);
      for (int64_t node = begin; node < end; ++node) {
        const int64_t row = req * num_nodes + node;
        const float* own = all_logits + row * length;
        if (!is_greedy) {
          const FloatVec scale(1.0f / temperatures[req]);
          at::vec::map2<float>([scale](FloatVec logit, FloatVec gumbel) { return logit * scale + gumbel; },
                               values.data(), own, noise.data(), length);
          own = values.data();
        }
        rank_node(own, length, top_k, all_scores + row * top_k, all_indices + row * top_k);
      }
    });
  }
  return {scores, indices};
}

}  // namespace tlt_engine
