// One vocabulary block of 64 tokens on vector registers: its logits, its noise words and its best candidate.
#pragma once

#include "common/vec.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "gumbel_argmax/gumbel_argmax.cuh"

namespace tlt_engine {

using FloatVec = at::vec::Vectorized<float>;
constexpr int kLanes = FloatVec::size();
static_assert(kNoiseBlock % kLanes == 0, "a block is a whole number of vectors");

// Reads a full block of logits as float32.
template <typename scalar_t>
inline void load_block(const scalar_t* logits, FloatVec (&loaded)[kNoiseBlock / kLanes]) {
#pragma GCC unroll 16
  for (int vec = 0; vec < kNoiseBlock / kLanes; ++vec) {
    if constexpr (std::is_same_v<scalar_t, float>) {
      loaded[vec] = FloatVec::loadu(logits + vec * kLanes);
    } else {
      at::vec::load_to_float<scalar_t>(logits + vec * kLanes, loaded[vec]);
    }
  }
}

// The largest logit of a full block; NaN counts as -inf.
template <typename scalar_t>
inline float block_max(const scalar_t* logits) {
  FloatVec loaded[kNoiseBlock / kLanes];
  load_block(logits, loaded);
  FloatVec highest(-std::numeric_limits<float>::infinity());
#pragma GCC unroll 16
  for (const FloatVec& vec : loaded) highest = FloatVec::blendv(highest, vec, vec > highest);
  float lanes[kLanes];
  highest.store(lanes);
  float result = lanes[0];
#pragma omp simd reduction(max : result)
  for (int lane = 0; lane < kLanes; ++lane) result = lanes[lane] > result ? lanes[lane] : result;
  return result;
}

// Fills words with the noise of a block, token by token, and returns the smallest: the one with the most noise.
inline uint32_t fill_noise_words(int64_t seed, int64_t position, uint32_t block, uint32_t (&words)[kNoiseBlock]) {
#pragma omp simd
  for (int lane = 0; lane < kNoiseLanes; ++lane) {
    const PhiloxWords drawn = noise_words(seed, position, block * kNoiseLanes + lane);
    words[lane] = drawn.word[0];
    words[kNoiseLanes + lane] = drawn.word[1];
    words[2 * kNoiseLanes + lane] = drawn.word[2];
    words[3 * kNoiseLanes + lane] = drawn.word[3];
  }
  // A loop of its own: with the minimum inside, GCC 12 leaves Philox scalar, which takes 2.6 times as long.
  uint32_t smallest = std::numeric_limits<uint32_t>::max();
#pragma omp simd reduction(min : smallest)
  for (int token = 0; token < kNoiseBlock; ++token) smallest = words[token] < smallest ? words[token] : smallest;
  return smallest;
}

// The best candidate among best and a full block. Both score and tie rule are those of the CUDA kernel.
template <typename scalar_t>
inline Candidate evaluate_block(const scalar_t* logits, float temperature, const uint32_t (&words)[kNoiseBlock],
                                int32_t first_token, Candidate best) {
  FloatVec loaded[kNoiseBlock / kLanes];
  load_block(logits, loaded);
  alignas(64) float uniforms[kNoiseBlock];
  alignas(64) float scores[kNoiseBlock];
  for (int token = 0; token < kNoiseBlock; ++token) {
    uniforms[token] = std::min((static_cast<float>(words[token]) + 0.5f) * kWordScale, kMaxUniform);
  }
  for (int vec = 0; vec < kNoiseBlock / kLanes; ++vec) {
    const FloatVec exponential = FloatVec::loadu(uniforms + vec * kLanes).neg().log1p().neg();
    (loaded[vec] / FloatVec(temperature) + exponential.log().neg()).store(scores + vec * kLanes);
  }
  for (int token = 0; token < kNoiseBlock; ++token) best = better_of(best, {scores[token], first_token + token});
  return best;
}

}  // namespace tlt_engine
