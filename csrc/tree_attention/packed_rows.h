// What one (tree, kv head) does with one chunk of its context: packs the rows, walks the cache blocks, keeps the
// softmax.
#pragma once

#include "attention_tile.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace tlt_engine {

constexpr float kLog2E = 1.44269504088896340736f;
// Slots after which a context may be cut; a change alters the last bits of every result. See tree_attention.h.
constexpr int64_t kChunkSlots = 512;

template <typename T>
struct Problem {
  T* out;
  const T* query;
  const T* keys;
  const T* values;
  const int32_t* block_table;
  const int32_t* depths;
  const int64_t* ancestor_masks;
  const float* sinks;  // null: none
  int64_t out_stride, query_stride;
  int64_t key_block_stride, key_head_stride, key_dim_stride;
  int64_t value_block_stride, value_head_stride, value_slot_stride;
  int64_t table_stride;
  int64_t num_kv_heads, group, head_size, block_size, num_words, window;
  float query_scale;
  float softcap;  // of base-2 scores; 0: off

  int64_t chunk_blocks() const { return std::max<int64_t>(1, kChunkSlots / block_size); }
};

struct Tree {
  int64_t req, query_start, context_len, first_row, num_rows, num_chunks;
  int64_t split_offset;  // where the states of its chunks start in the split buffer, in floats; -1: not split

  int64_t work() const { return (context_len + num_rows) * num_rows; }
};

// Running softmax of the packed rows of one (tree, kv head): unnormalised outputs, maxima and sums.
struct SoftmaxState {
  float* acc;
  float* max;
  float* sum;

  static int64_t num_floats(int64_t num_packed, int64_t head_size) { return num_packed * (head_size + 2); }
  SoftmaxState(float* storage, int64_t num_packed, int64_t head_size)
      : acc(storage), max(storage + num_packed * head_size), sum(max + num_packed) {}

  void reset(int64_t num_packed, int64_t head_size) {
    std::fill_n(acc, num_packed * head_size, 0.0f);
    std::fill_n(max, num_packed, kMaskedScore);
    std::fill_n(sum, num_packed, 0.0f);
  }

  // Adds the state of the next chunk.
  void fold(const SoftmaxState& chunk, int64_t num_packed, int64_t head_size) {
    for (int64_t row = 0; row < num_packed; ++row) {
      if (chunk.max[row] == kMaskedScore) continue;
      const float new_max = std::max(max[row], chunk.max[row]);
      const float own_scale = std::exp2(max[row] - new_max);
      const float chunk_scale = std::exp2(chunk.max[row] - new_max);
      max[row] = new_max;
      sum[row] = sum[row] * own_scale + chunk.sum[row] * chunk_scale;
      for (int64_t dim = row * head_size; dim < (row + 1) * head_size; dim += kLanes) {
        const FloatVec scaled = FloatVec::loadu(acc + dim) * FloatVec(own_scale);
        at::vec::fmadd(FloatVec::loadu(chunk.acc + dim), FloatVec(chunk_scale), scaled).store(acc + dim);
      }
    }
  }
};

// Scratch of one thread; it only grows.
struct Workspace {
  std::vector<float> query, scores, total, chunk, split;
  std::vector<int64_t> first_slots;

  template <typename Element>
  static Element* at_least(std::vector<Element>& buffer, int64_t size) {
    if (static_cast<int64_t>(buffer.size()) < size) buffer.resize(size);
    return buffer.data();
  }
  static Workspace& local() {
    static thread_local Workspace workspace;
    return workspace;
  }
};

// The rows of a tree and the query heads of one kv head, packed row-major (row, head of the group), scaled, in float32.
template <typename T>
class PackedRows {
 public:
  PackedRows(const Problem<T>& problem, const Tree& tree, int64_t kv_head)
      : problem_(problem),
        tree_(tree),
        kv_head_(kv_head),
        workspace_(Workspace::local()),
        num_packed_(tree.num_rows * problem.group),
        num_tiles_((num_packed_ + kMaxTileRows - 1) / kMaxTileRows) {
    const int64_t width = problem.group * problem.head_size;
    query_ = Workspace::at_least(workspace_.query, num_packed_ * problem.head_size);
    first_slots_ = Workspace::at_least(workspace_.first_slots, tree.num_rows);
    const FloatVec scale(problem.query_scale);
    for (int64_t row = 0; row < tree.num_rows; ++row) {
      const T* source = problem.query + (tree.query_start + row) * problem.query_stride + kv_head * width;
      for (int64_t dim = 0; dim < width; dim += kLanes) {
        (load_float(source + dim) * scale).store(query_ + row * width + dim);
      }
      const int64_t position = tree.context_len + problem.depths[tree.first_row + row];
      first_slots_[row] = problem.window > 0 ? std::max<int64_t>(0, position - problem.window + 1) : 0;
    }
    first_slot_ = *std::min_element(first_slots_, first_slots_ + tree.num_rows);
  }

  // Attends to the slots of one chunk, from an empty state.
  void attend_chunk(int64_t chunk, SoftmaxState state) {
    state.reset(num_packed_, problem_.head_size);
    const int64_t block_size = problem_.block_size;
    const int64_t end_slot = tree_.context_len + tree_.num_rows;
    const int64_t end_block = std::min((chunk + 1) * problem_.chunk_blocks(), (end_slot + block_size - 1) / block_size);
    // Positions bound slots from below (row j sits at depth(j) <= j), so blocks before the earliest window are unseen.
    for (int64_t block =
             std::max(chunk * problem_.chunk_blocks(), std::min(first_slot_, tree_.context_len) / block_size);
         block < end_block; ++block) {
      attend_block(block, state);
    }
  }

 private:
  void attend_block(int64_t block, SoftmaxState& state) {
    const int64_t physical = problem_.block_table[tree_.req * problem_.table_stride + block];
    const T* keys = problem_.keys + physical * problem_.key_block_stride + kv_head_ * problem_.key_head_stride;
    const T* values = problem_.values + physical * problem_.value_block_stride + kv_head_ * problem_.value_head_stride;
    const int64_t head_size = problem_.head_size;
    const int64_t block_size = problem_.block_size;
    const int64_t block_start = block * block_size;
    float* scores = Workspace::at_least(workspace_.scores, kMaxTileRows * block_size);
    for (int64_t tile = 0; tile < num_tiles_; ++tile) {
      const int64_t begin = tile * num_packed_ / num_tiles_;
      const int64_t num_rows = (tile + 1) * num_packed_ / num_tiles_ - begin;
      const int64_t first_row = begin / problem_.group;
      const int64_t last_row = (begin + num_rows - 1) / problem_.group;
      const auto [earliest, latest] = std::minmax_element(first_slots_ + first_row, first_slots_ + last_row + 1);
      // A row sees no tree row after its own, and no context slot before its window.
      const int64_t first = std::max<int64_t>(0, std::min(*earliest, tree_.context_len) - block_start);
      const int64_t end = std::min(block_size, tree_.context_len + last_row + 1 - block_start);
      if (first >= end) continue;
      const int64_t first_col = first / kLanes * kLanes;
      const int64_t num_vecs = (end - first_col + kLanes - 1) / kLanes;
      const TileProducts<T>& products = kTileProducts<T>[num_rows - 1];
      products.score(query_ + begin * head_size, keys + first_col, problem_.key_dim_stride, head_size, num_vecs, scores,
                     block_size);
      const bool is_masked = block_start + end > tree_.context_len || *latest > block_start + first_col ||
                             first_col + num_vecs * kLanes != end;
      float rescale[kMaxTileRows];
      for (int64_t row = 0; row < num_rows; ++row) {
        float* row_scores = scores + row * block_size;
        if (problem_.softcap > 0) softcap_row(row_scores, num_vecs, problem_.softcap);
        if (is_masked) mask((begin + row) / problem_.group, block_start + first_col, num_vecs * kLanes, row_scores);
        rescale[row] = softmax_row(row_scores, num_vecs, state.max + begin + row, state.sum + begin + row);
      }
      products.accumulate(scores + first - first_col, block_size, values + first * problem_.value_slot_stride,
                          problem_.value_slot_stride, end - first, head_size / kLanes, rescale,
                          state.acc + begin * head_size, head_size);
    }
  }

  // Sets the scores of the slots that a row does not see; slots past its own hold anything, so they are overwritten.
  void mask(int64_t row, int64_t start_slot, int64_t num_slots, float* scores) const {
    const int64_t context_slots = std::clamp<int64_t>(tree_.context_len - start_slot, 0, num_slots);
    const int64_t hidden = std::clamp<int64_t>(first_slots_[row] - start_slot, 0, context_slots);
    std::fill_n(scores, hidden, kMaskedScore);
    const int64_t* ancestors = problem_.ancestor_masks + (tree_.first_row + row) * problem_.num_words;
    const int64_t row_end = std::min(num_slots, tree_.context_len + row + 1 - start_slot);
    for (int64_t col = context_slots; col < row_end; ++col) {
      const int64_t other = start_slot + col - tree_.context_len;
      const bool is_ancestor = (ancestors[other / 64] >> (other % 64)) & 1;
      const int64_t position = tree_.context_len + problem_.depths[tree_.first_row + other];
      if (!is_ancestor || position < first_slots_[row]) scores[col] = kMaskedScore;
    }
    for (int64_t col = std::max(context_slots, row_end); col < num_slots; ++col) scores[col] = kMaskedScore;
  }

  const Problem<T>& problem_;
  const Tree& tree_;
  int64_t kv_head_;
  Workspace& workspace_;
  int64_t num_packed_;
  int64_t num_tiles_;
  float* query_;
  int64_t* first_slots_;  // per row: the earliest position its window shows
  int64_t first_slot_;
};

// Divides by the softmax denominator and writes the rows.
template <typename T>
void finish_rows(const Problem<T>& problem, const Tree& tree, int64_t kv_head, const SoftmaxState& state) {
  const int64_t head_size = problem.head_size;
  for (int64_t packed = 0; packed < tree.num_rows * problem.group; ++packed) {
    const int64_t head = kv_head * problem.group + packed % problem.group;
    float numerator = 1.0f;
    float denominator = state.sum[packed];
    if (problem.sinks != nullptr) {
      const float sink = problem.sinks[head] * kLog2E;
      const float new_max = std::max(state.max[packed], sink);
      numerator = std::exp2(state.max[packed] - new_max);
      denominator = denominator * numerator + std::exp2(sink - new_max);
    }
    const FloatVec scale(numerator / denominator);
    T* target = problem.out + (tree.query_start + packed / problem.group) * problem.out_stride + head * head_size;
    for (int64_t dim = 0; dim < head_size; dim += kLanes) {
      store_float(FloatVec::loadu(state.acc + packed * head_size + dim) * scale, target + dim);
    }
  }
}

}  // namespace tlt_engine
