// Task: the drafter's attention. Each node of the newest tree level attends to the latest window of its request and to
// the tree nodes that it sees.
//
// Memory: a slot's places are the scratch of the tree, newest level first and filled from its end, then the ring of the
// window: position p lies in place num_scratch + p % window. Keys have the places innermost, [head_size, places], so
// that one register holds the scores of neighbouring places; values have the head size innermost.
//
// Invariant: a place that is not seen has a bias of -inf; a node always sees itself or the window's newest position.
//
// Parallelisation: requests x key-value heads x tiles of query rows; a tile's scores stay in the first-level cache.
#include "common/vec.h"

#include "window_attention/window_attention.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace tlt_engine {

namespace {

using FloatVec = at::vec::Vectorized<float>;
constexpr int64_t kLanes = FloatVec::size();
constexpr int64_t kTileRows = 4;
constexpr int64_t kVecs = 4;  // of the head size, held in registers at a time
constexpr float kNegInf = -std::numeric_limits<float>::infinity();

struct Cache {
  const float* keys;
  const float* values;
  int64_t num_kv_heads, head_size, num_places, num_scratch;

  int64_t window() const { return num_places - num_scratch; }
};

// The places a request's rows may see: [first, last), and the bias of each, one line a node.
struct Places {
  int64_t first, last;
  std::vector<float> bias;

  Places(const Cache& cache, int64_t start, int64_t end, const bool* visible, int64_t num_nodes, int64_t num_seen,
         int64_t depth)
      : first(cache.num_scratch - num_seen),
        last(cache.num_scratch + std::min(end, cache.window())),
        bias(num_nodes * (last - first)) {
    const int64_t oldest = std::max(start, end + depth - cache.window());
    for (int64_t place = cache.num_scratch; place < last; ++place) {
      const int64_t age = end <= cache.window() ? end - 1 - (place - cache.num_scratch)
                                                : modulo(end - 1 - (place - cache.num_scratch), cache.window());
      bias[place - first] = end - 1 - age >= oldest ? 0.0f : kNegInf;
    }
    for (int64_t node = num_nodes - 1; node >= 0; --node) {
      float* line = bias.data() + node * length();
      std::copy_n(bias.data() + num_seen, length() - num_seen, line + num_seen);
      for (int64_t seen = 0; seen < num_seen; ++seen) line[seen] = visible[node * num_seen + seen] ? 0.0f : kNegInf;
    }
  }

  int64_t length() const { return last - first; }

  static int64_t modulo(int64_t value, int64_t size) { return (value % size + size) % size; }
};

// Rows that share keys: the heads of a group, node by node.
struct Tile {
  int64_t num_rows;
  const float* query[kTileRows];
  const float* bias[kTileRows];
  float* out[kTileRows];
};

// scores[row][place] = query . key * scale + bias, for a register of places at a time.
void score(const Tile& tile, const float* keys, int64_t stride, int64_t head_size, int64_t length, float scale,
           float* scores) {
  int64_t place = 0;
  for (; place + kLanes <= length; place += kLanes) {
    FloatVec sums[kTileRows] = {FloatVec(0.0f), FloatVec(0.0f), FloatVec(0.0f), FloatVec(0.0f)};
    for (int64_t dim = 0; dim < head_size; ++dim) {
      const FloatVec key = FloatVec::loadu(keys + dim * stride + place);
#pragma GCC unroll 4
      for (int64_t row = 0; row < kTileRows; ++row) {
        sums[row] = at::vec::fmadd(FloatVec(tile.query[row][dim]), key, sums[row]);
      }
    }
    for (int64_t row = 0; row < tile.num_rows; ++row) {
      at::vec::fmadd(sums[row], FloatVec(scale), FloatVec::loadu(tile.bias[row] + place))
          .store(scores + row * length + place);
    }
  }
  for (; place < length; ++place) {
    for (int64_t row = 0; row < tile.num_rows; ++row) {
      float sum = 0.0f;
      for (int64_t dim = 0; dim < head_size; ++dim) sum += tile.query[row][dim] * keys[dim * stride + place];
      scores[row * length + place] = sum * scale + tile.bias[row][place];
    }
  }
}

void softmax(float* scores, int64_t length) {
  const float highest =
      at::vec::reduce_all<float>([](FloatVec& a, FloatVec& b) { return at::vec::maximum(a, b); }, scores, length);
  at::vec::map<float>([highest](FloatVec score) { return (score - FloatVec(highest)).exp_u20(); }, scores, scores,
                      length);
  const float sum = at::vec::reduce_all<float>([](FloatVec& a, FloatVec& b) { return a + b; }, scores, length);
  at::vec::map<float>([sum](FloatVec weight) { return weight / FloatVec(sum); }, scores, scores, length);
}

void weigh(const Tile& tile, const float* values, int64_t head_size, int64_t length, const float* weights) {
  int64_t dim = 0;
  for (; dim + kVecs * kLanes <= head_size; dim += kVecs * kLanes) {
    FloatVec sums[kTileRows][kVecs];
    for (auto& row : sums) std::fill_n(row, kVecs, FloatVec(0.0f));
    for (int64_t place = 0; place < length; ++place) {
      const float* value = values + place * head_size + dim;
#pragma GCC unroll 4
      for (int64_t vec = 0; vec < kVecs; ++vec) {
        const FloatVec loaded = FloatVec::loadu(value + vec * kLanes);
#pragma GCC unroll 4
        for (int64_t row = 0; row < kTileRows; ++row) {
          sums[row][vec] = at::vec::fmadd(FloatVec(weights[row * length + place]), loaded, sums[row][vec]);
        }
      }
    }
    for (int64_t row = 0; row < tile.num_rows; ++row) {
      for (int64_t vec = 0; vec < kVecs; ++vec) sums[row][vec].store(tile.out[row] + dim + vec * kLanes);
    }
  }
  for (; dim < head_size; ++dim) {
    for (int64_t row = 0; row < tile.num_rows; ++row) {
      float sum = 0.0f;
      for (int64_t place = 0; place < length; ++place)
        sum += weights[row * length + place] * values[place * head_size + dim];
      tile.out[row][dim] = sum;
    }
  }
}

}  // namespace

at::Tensor window_attention_cpu(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                                const at::Tensor& slots, const at::Tensor& starts, const at::Tensor& ends,
                                const at::Tensor& visible, int64_t num_scratch, int64_t depth) {
  check_window_attention(query, keys, values, slots, starts, ends, visible, num_scratch, depth);
  at::Tensor out = at::empty_like(query);
  if (out.numel() == 0) return out;
  const int64_t num_reqs = query.size(0), num_nodes = query.size(1), num_heads = query.size(2);
  const Cache cache{keys.const_data_ptr<float>(),
                    values.const_data_ptr<float>(),
                    keys.size(1),
                    query.size(3),
                    values.size(2),
                    num_scratch};
  const int64_t num_seen = visible.size(2), group = num_heads / cache.num_kv_heads;
  std::vector<Places> places;
  places.reserve(num_reqs);
  int64_t longest = 0;
  for (int64_t req = 0; req < num_reqs; ++req) {
    places.emplace_back(cache, starts.const_data_ptr<int64_t>()[req], ends.const_data_ptr<int64_t>()[req],
                        visible.const_data_ptr<bool>() + req * num_nodes * num_seen, num_nodes, num_seen, depth);
    longest = std::max(longest, places.back().length());
  }
  const float* queries = query.const_data_ptr<float>();
  float* outs = out.mutable_data_ptr<float>();
  const int64_t* slot_of = slots.const_data_ptr<int64_t>();
  const float scale = 1.0f / std::sqrt(static_cast<float>(cache.head_size));
  const int64_t num_rows = num_nodes * group, num_tiles = (num_rows + kTileRows - 1) / kTileRows;
  at::parallel_for(0, num_reqs * cache.num_kv_heads * num_tiles, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scores(kTileRows * longest);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first_row = task % num_tiles * kTileRows;
      const int64_t kv_head = task / num_tiles % cache.num_kv_heads, req = task / num_tiles / cache.num_kv_heads;
      const Places& seen = places[req];
      Tile tile{std::min(kTileRows, num_rows - first_row), {}, {}, {}};
      for (int64_t row = 0; row < kTileRows; ++row) {
        const int64_t index = first_row + std::min(row, tile.num_rows - 1);  // a tile that is not full repeats its last
        const int64_t head = kv_head * group + index % group;
        const int64_t offset = ((req * num_nodes + index / group) * num_heads + head) * cache.head_size;
        tile.query[row] = queries + offset;
        tile.out[row] = outs + offset;
        tile.bias[row] = seen.bias.data() + index / group * seen.length();
      }
      const int64_t plane = slot_of[req] * cache.num_kv_heads + kv_head;
      score(tile, cache.keys + plane * cache.head_size * cache.num_places + seen.first, cache.num_places,
            cache.head_size, seen.length(), scale, scores.data());
      for (int64_t row = 0; row < tile.num_rows; ++row) softmax(scores.data() + row * seen.length(), seen.length());
      weigh(tile, cache.values + (plane * cache.num_places + seen.first) * cache.head_size, cache.head_size,
            seen.length(), scores.data());
    }
  });
  return out;
}

}  // namespace tlt_engine
