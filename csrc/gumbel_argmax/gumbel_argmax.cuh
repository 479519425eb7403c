// Task: per row, the token with the largest logit / temperature + Gumbel noise, which is a draw from the softmax
// (Gumbel-max). The noise is a function of (seed, position, token) alone, so a row's token depends neither on its batch
// neighbours nor on the draft tree it sits in. A temperature below kGreedyTemperature means the plain argmax.
//
// Memory: logits [num_rows, vocab_size] with a free row stride. One Philox counter yields four words; counter c serves
// the tokens (c / 16) * 64 + c % 16 + {0, 16, 32, 48}, so 16 neighbouring counters cover 64 neighbouring tokens.
//
// Invariant: candidates are compared by (score, smaller token first), which is associative and commutative, so any
// split of the vocabulary gives the same token. NaN never wins; a row without a finite logit gives token 0.
//
// Parallelisation: rows x vocabulary splits, since a decode batch has too few rows to fill the chip. The partial
// winners are merged by a second kernel, one block a row. Source: Gumbel-max, Maddison, Tarlow, Minka, "A* Sampling",
// NeurIPS 2014; Philox, Salmon et al., SC 2011.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/host_device.h"
#include "common/philox.h"

namespace tlt_engine {

constexpr float kGreedyTemperature = 1e-5f;  // vLLM's _SAMPLING_EPS
constexpr uint32_t kNoiseDomain = 0x544C5400u;
constexpr int kNoiseLanes = 16;
constexpr int kNoiseWords = 4;
constexpr int kNoiseBlock = kNoiseLanes * kNoiseWords;
constexpr float kWordScale = 0x1p-32f;
constexpr float kMaxUniform = 1.0f - 0x1p-24f;

// The noise words of the tokens (counter / 16) * 64 + counter % 16 + {0, 16, 32, 48}.
TLT_HOST_DEVICE PhiloxWords noise_words(int64_t seed, int64_t position, uint32_t counter) {
  const auto key = static_cast<uint64_t>(seed);
  const auto place = static_cast<uint64_t>(position);
  return philox4x32({{counter, static_cast<uint32_t>(place), static_cast<uint32_t>(place >> 32), kNoiseDomain}},
                    static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
}

TLT_HOST_DEVICE float gumbel_from_word(uint32_t word) {
  const float uniform = fminf((static_cast<float>(word) + 0.5f) * kWordScale, kMaxUniform);
  return -logf(-log1pf(-uniform));
}

// The noise of one token.
TLT_HOST_DEVICE float token_noise(int64_t seed, int64_t position, int64_t token) {
  const auto counter = static_cast<uint32_t>(token / kNoiseBlock * kNoiseLanes + token % kNoiseLanes);
  return gumbel_from_word(noise_words(seed, position, counter).word[token / kNoiseLanes % kNoiseWords]);
}

struct Candidate {
  float score;
  int32_t token;
};

// What -inf cannot beat and NaN cannot either: token 0.
TLT_HOST_DEVICE Candidate no_candidate() { return {-INFINITY, 0}; }

TLT_HOST_DEVICE Candidate better_of(Candidate a, Candidate b) {
  return b.score > a.score || (b.score == a.score && b.token < a.token) ? b : a;
}

#if defined(__CUDACC__)

constexpr int kArgmaxThreads = 256;

// The block's winner, valid in thread 0.
__device__ __forceinline__ Candidate block_winner(Candidate best) {
  constexpr int kWarpSize = 32;
  __shared__ Candidate winners[kArgmaxThreads / kWarpSize];
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    best = better_of(best, {__shfl_down_sync(~0u, best.score, offset), __shfl_down_sync(~0u, best.token, offset)});
  }
  if (threadIdx.x % kWarpSize == 0) winners[threadIdx.x / kWarpSize] = best;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < kArgmaxThreads / kWarpSize; ++warp) best = better_of(best, winners[warp]);
  }
  return best;
}

// Grid: (splits, rows). The counters of a row are dealt to the splits' threads in turn.
template <typename scalar_t>
__global__ void gumbel_argmax_kernel(const scalar_t* logits, int64_t row_stride, int32_t vocab_size,
                                     const float* temperature, const int64_t* seeds, const int64_t* positions,
                                     Candidate* partial) {
  const int64_t row = blockIdx.y;
  const scalar_t* row_logits = logits + row * row_stride;
  const float row_temperature = temperature[row];
  const bool is_greedy = row_temperature < kGreedyTemperature;
  const int32_t num_counters = (vocab_size + kNoiseBlock - 1) / kNoiseBlock * kNoiseLanes;
  Candidate best = no_candidate();
  for (int32_t counter = blockIdx.x * kArgmaxThreads + threadIdx.x; counter < num_counters;
       counter += gridDim.x * kArgmaxThreads) {
    PhiloxWords words{};
    if (!is_greedy) words = noise_words(seeds[row], positions[row], counter);
#pragma unroll
    for (int word = 0; word < kNoiseWords; ++word) {
      const int32_t token = counter / kNoiseLanes * kNoiseBlock + counter % kNoiseLanes + word * kNoiseLanes;
      if (token >= vocab_size) continue;
      const float logit = static_cast<float>(row_logits[token]);
      const float score =
          is_greedy ? logit : __fadd_rn(__fdiv_rn(logit, row_temperature), gumbel_from_word(words.word[word]));
      best = better_of(best, {score, token});
    }
  }
  best = block_winner(best);
  if (threadIdx.x == 0) partial[row * gridDim.x + blockIdx.x] = best;
}

// Grid: rows.
__global__ void gumbel_argmax_merge_kernel(const Candidate* partial, int32_t num_splits, int64_t* token_ids) {
  Candidate best = no_candidate();
  for (int32_t split = threadIdx.x; split < num_splits; split += kArgmaxThreads) {
    best = better_of(best, partial[static_cast<int64_t>(blockIdx.x) * num_splits + split]);
  }
  best = block_winner(best);
  if (threadIdx.x == 0) token_ids[blockIdx.x] = best.token;
}

#endif

}  // namespace tlt_engine
