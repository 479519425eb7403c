// Register tiles of the tree attention: scores, softmax and weighted values for a few packed rows and one cache block.
// A tile keeps kRows x kVecs accumulators in registers; both operands are streamed once, the cache with vector loads
// and the rows as broadcasts. Every output element is summed over head_size (or over slots) in ascending order whatever
// the tile's shape, so the shape never changes a bit of the result.
#pragma once

#include "../common/vec.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace tlt_engine {

using FloatVec = at::vec::Vectorized<float>;
constexpr int64_t kLanes = FloatVec::size();
constexpr int64_t kMaxTileRows = 6;
// 24 of the 32 vector registers of AVX-512 hold sums; AVX2 has 16 registers, so half of that.
constexpr int64_t kAccumulators = kLanes >= 16 ? 24 : 12;
constexpr float kMaskedScore = -std::numeric_limits<float>::infinity();

template <typename T>
inline FloatVec load_float(const T* source) {
  if constexpr (std::is_same_v<T, float>) {
    return FloatVec::loadu(source);
  } else {
    FloatVec loaded;
    if constexpr (std::is_same_v<T, at::BFloat16>) {
      at::vec::load_fp32_from_bf16(source, loaded);
    } else {
      at::vec::load_fp32_from_fp16(source, loaded);
    }
    return loaded;
  }
}

template <typename T>
inline void store_float(FloatVec value, T* target) {
  if constexpr (std::is_same_v<T, float>) {
    value.store(target);
  } else {
    at::vec::convert_from_float<T>(value, value).store(target, kLanes);
  }
}

// 2^x for x <= 0, relative error below 1.5e-7; exactly 0 from -127 down, so masked slots weigh nothing. NaN stays NaN.
inline FloatVec exp2_nonpositive(FloatVec x) {
  x = at::vec::clamp_min(x, FloatVec(-127.0f));
  const FloatVec whole = x.round();
  const FloatVec fraction = x - whole;
  FloatVec power = at::vec::fmadd(FloatVec(0.00132647f), fraction, FloatVec(0.00967151f));
  power = at::vec::fmadd(power, fraction, FloatVec(0.05550734f));
  power = at::vec::fmadd(power, fraction, FloatVec(0.24022242f));
  power = at::vec::fmadd(power, fraction, FloatVec(0.69314698f));
  power = at::vec::fmadd(power, fraction, FloatVec(1.0f));
  const auto exponent = at::vec::convert_to_int_of_same_size(whole) + at::vec::Vectorized<int32_t>(127);
  return power * at::vec::cast<float, int32_t>(exponent << at::vec::Vectorized<int32_t>(23));
}

// Scores num_vecs vectors of consecutive slots, the widest tile that fits first.
template <typename T, int kRows, int kVecs>
inline void score_columns(const float* query, const T* keys, int64_t key_stride, int64_t head_size, int64_t num_vecs,
                          float* scores, int64_t score_stride) {
  for (; num_vecs >= kVecs; num_vecs -= kVecs, keys += kVecs * kLanes, scores += kVecs * kLanes) {
    FloatVec sums[kRows][kVecs];
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
      for (int vec = 0; vec < kVecs; ++vec) sums[row][vec] = FloatVec(0.0f);
    }
    const T* key = keys;
    for (int64_t dim = 0; dim < head_size; ++dim, key += key_stride) {
      FloatVec weights[kRows];
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) weights[row] = FloatVec(query[row * head_size + dim]);
#pragma GCC unroll 8
      for (int vec = 0; vec < kVecs; ++vec) {
        const FloatVec loaded = load_float(key + vec * kLanes);
#pragma GCC unroll 8
        for (int row = 0; row < kRows; ++row) sums[row][vec] = at::vec::fmadd(weights[row], loaded, sums[row][vec]);
      }
    }
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
      for (int vec = 0; vec < kVecs; ++vec) sums[row][vec].store(scores + row * score_stride + vec * kLanes);
    }
  }
  if constexpr (kVecs > 1) {
    score_columns<T, kRows, kVecs / 2>(query, keys, key_stride, head_size, num_vecs, scores, score_stride);
  }
}

// acc = acc * rescale + weights x values for num_vecs vectors of the head, the widest tile that fits first.
template <typename T, int kRows, int kVecs>
inline void accumulate_columns(const float* weights, int64_t weight_stride, const T* values, int64_t value_stride,
                               int64_t num_slots, int64_t num_vecs, const float* rescale, float* acc,
                               int64_t head_size) {
  for (; num_vecs >= kVecs; num_vecs -= kVecs, values += kVecs * kLanes, acc += kVecs * kLanes) {
    FloatVec sums[kRows][kVecs];
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
      for (int vec = 0; vec < kVecs; ++vec) {
        sums[row][vec] = FloatVec::loadu(acc + row * head_size + vec * kLanes) * FloatVec(rescale[row]);
      }
    }
    const T* value = values;
    for (int64_t slot = 0; slot < num_slots; ++slot, value += value_stride) {
      FloatVec weight[kRows];
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) weight[row] = FloatVec(weights[row * weight_stride + slot]);
#pragma GCC unroll 8
      for (int vec = 0; vec < kVecs; ++vec) {
        const FloatVec loaded = load_float(value + vec * kLanes);
#pragma GCC unroll 8
        for (int row = 0; row < kRows; ++row) sums[row][vec] = at::vec::fmadd(weight[row], loaded, sums[row][vec]);
      }
    }
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
      for (int vec = 0; vec < kVecs; ++vec) sums[row][vec].store(acc + row * head_size + vec * kLanes);
    }
  }
  if constexpr (kVecs > 1) {
    accumulate_columns<T, kRows, kVecs / 2>(weights, weight_stride, values, value_stride, num_slots, num_vecs, rescale,
                                            acc, head_size);
  }
}

// The vectors a tile of that many rows is wide: the largest power of two whose sums still fit the registers.
constexpr int tile_width(int64_t num_rows) {
  return num_rows * 8 <= kAccumulators ? 8 : num_rows * 4 <= kAccumulators ? 4 : num_rows * 2 <= kAccumulators ? 2 : 1;
}

// The two products for one number of rows.
template <typename T>
struct TileProducts {
  void (*score)(const float* query, const T* keys, int64_t key_stride, int64_t head_size, int64_t num_vecs,
                float* scores, int64_t score_stride);
  void (*accumulate)(const float* weights, int64_t weight_stride, const T* values, int64_t value_stride,
                     int64_t num_slots, int64_t num_vecs, const float* rescale, float* acc, int64_t head_size);
};

template <typename T, int kRows>
constexpr TileProducts<T> tile_products() {
  return {score_columns<T, kRows, tile_width(kRows)>, accumulate_columns<T, kRows, tile_width(kRows)>};
}

// Indexed by the number of rows minus one.
template <typename T>
inline constexpr std::array<TileProducts<T>, kMaxTileRows> kTileProducts = {
    tile_products<T, 1>(), tile_products<T, 2>(), tile_products<T, 3>(),
    tile_products<T, 4>(), tile_products<T, 5>(), tile_products<T, 6>()};

// Turns a row's scores (base 2) into weights relative to the running maximum and adds them to the running sum.
// Returns the factor that the row's earlier sums must be multiplied with.
inline float softmax_row(float* scores, int64_t num_vecs, float* running_max, float* running_sum) {
  FloatVec highest = FloatVec::loadu(scores);
  for (int64_t vec = 1; vec < num_vecs; ++vec) {
    highest = at::vec::maximum(highest, FloatVec::loadu(scores + vec * kLanes));
  }
  const float block_max =
      at::vec::vec_reduce_all<float>([](FloatVec a, FloatVec b) { return at::vec::maximum(a, b); }, highest);
  const float old_max = *running_max;
  const float new_max = std::max(old_max, block_max);
  // A fully masked row would give -inf - -inf; against 0 its weights come out as the zeros they are.
  const FloatVec offset(new_max == kMaskedScore ? 0.0f : new_max);
  FloatVec sum(0.0f);
  for (int64_t vec = 0; vec < num_vecs; ++vec) {
    const FloatVec weight = exp2_nonpositive(FloatVec::loadu(scores + vec * kLanes) - offset);
    weight.store(scores + vec * kLanes);
    sum = sum + weight;
  }
  const float block_sum = at::vec::vec_reduce_all<float>([](FloatVec a, FloatVec b) { return a + b; }, sum);
  const float rescale = old_max == new_max ? 1.0f : std::exp2(old_max - new_max);
  *running_max = new_max;
  *running_sum = *running_sum * rescale + block_sum;
  return rescale;
}

// scores = cap * tanh(scores); the caller has divided them by the cap already.
inline void softcap_row(float* scores, int64_t num_vecs, float cap) {
  for (int64_t vec = 0; vec < num_vecs; ++vec) {
    (FloatVec(cap) * FloatVec::loadu(scores + vec * kLanes).tanh()).store(scores + vec * kLanes);
  }
}

}  // namespace tlt_engine
