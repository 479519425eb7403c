#include "packed_rows.h"
#include "tree_attention.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <atomic>

namespace tlt_engine {
namespace {

// Parts a thread should get, so that the last one to finish does not keep the others waiting long.
constexpr int64_t kPartsPerThread = 4;
// Softmax states of split trees live until all parts are done; trees beyond this many bytes are not split.
constexpr int64_t kMaxSplitBytes = int64_t{64} << 20;

// All chunks of one (tree, kv head) on this thread.
template <typename T>
void attend_whole(const Problem<T>& problem, const Tree& tree, int64_t kv_head) {
  Workspace& workspace = Workspace::local();
  PackedRows<T> rows(problem, tree, kv_head);
  const int64_t num_packed = tree.num_rows * problem.group;
  const int64_t num_floats = SoftmaxState::num_floats(num_packed, problem.head_size);
  SoftmaxState total(Workspace::at_least(workspace.total, num_floats), num_packed, problem.head_size);
  rows.attend_chunk(0, total);
  for (int64_t chunk = 1; chunk < tree.num_chunks; ++chunk) {
    SoftmaxState next(Workspace::at_least(workspace.chunk, num_floats), num_packed, problem.head_size);
    rows.attend_chunk(chunk, next);
    total.fold(next, num_packed, problem.head_size);
  }
  finish_rows(problem, tree, kv_head, total);
}

constexpr int64_t kAllChunks = -1;

struct Part {
  int64_t tree, kv_head, chunk;
};

// Runs body(0 .. size) on all threads; a thread that is done takes the next one.
template <typename Body>
void run_parts(int64_t size, const Body& body) {
  std::atomic<int64_t> next{0};
  at::parallel_for(0, std::min<int64_t>(at::get_num_threads(), size), 1, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      for (int64_t part = next.fetch_add(1); part < size; part = next.fetch_add(1)) body(part);
    }
  });
}

// Lists the trees and decides which are cut into chunks: those that are more than a fair part of the work by
// themselves. Returns the floats that the states of the cut trees need.
template <typename T>
int64_t plan(const Problem<T>& problem, const at::Tensor& req_indices, const at::Tensor& query_starts,
             const at::Tensor& context_lens, const at::Tensor& cu_num_rows, std::vector<Tree>* trees) {
  const int32_t* cu = cu_num_rows.const_data_ptr<int32_t>();
  const int64_t chunk_slots = problem.chunk_blocks() * problem.block_size;
  int64_t total_work = 0;
  for (int64_t index = 0; index < req_indices.numel(); ++index) {
    Tree tree;
    tree.req = req_indices.const_data_ptr<int32_t>()[index];
    tree.query_start = query_starts.const_data_ptr<int32_t>()[index];
    tree.context_len = context_lens.const_data_ptr<int32_t>()[index];
    tree.first_row = cu[index];
    tree.num_rows = cu[index + 1] - cu[index];
    tree.num_chunks = (tree.context_len + tree.num_rows + chunk_slots - 1) / chunk_slots;
    tree.split_offset = -1;
    if (tree.num_rows == 0) continue;
    trees->push_back(tree);
    total_work += tree.work() * problem.num_kv_heads;
  }
  int64_t split_floats = 0;
  const int64_t num_threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  for (Tree& tree : *trees) {
    const int64_t state = SoftmaxState::num_floats(tree.num_rows * problem.group, problem.head_size);
    const int64_t needed = state * tree.num_chunks * problem.num_kv_heads;
    const bool is_large = tree.work() * num_threads * kPartsPerThread > total_work;
    if (num_threads > 1 && tree.num_chunks > 1 && is_large &&
        (split_floats + needed) * static_cast<int64_t>(sizeof(float)) <= kMaxSplitBytes) {
      tree.split_offset = split_floats;
      split_floats += needed;
    }
  }
  return split_floats;
}

template <typename T>
void attend_trees(const Problem<T>& problem, const std::vector<Tree>& trees, int64_t split_floats) {
  std::vector<Part> parts;
  std::vector<std::atomic<int64_t>> num_pending(trees.size() * problem.num_kv_heads);
  const auto pending_of = [&](const Part& part) -> std::atomic<int64_t>& {
    return num_pending[part.tree * problem.num_kv_heads + part.kv_head];
  };
  for (int64_t tree = 0; tree < static_cast<int64_t>(trees.size()); ++tree) {
    for (int64_t kv_head = 0; kv_head < problem.num_kv_heads; ++kv_head) {
      if (trees[tree].split_offset < 0) {
        parts.push_back({tree, kv_head, kAllChunks});
        continue;
      }
      for (int64_t chunk = 0; chunk < trees[tree].num_chunks; ++chunk) parts.push_back({tree, kv_head, chunk});
      pending_of(parts.back()).store(trees[tree].num_chunks, std::memory_order_relaxed);
    }
  }
  // The calling thread's buffer, so that steady decoding allocates nothing; the other threads only see the pointer.
  float* split = Workspace::at_least(Workspace::local().split, split_floats);
  run_parts(parts.size(), [&](int64_t index) {
    const Part& part = parts[index];
    const Tree& tree = trees[part.tree];
    if (part.chunk == kAllChunks) {
      attend_whole(problem, tree, part.kv_head);
      return;
    }
    const int64_t num_packed = tree.num_rows * problem.group;
    const int64_t num_floats = SoftmaxState::num_floats(num_packed, problem.head_size);
    float* states = split + tree.split_offset + part.kv_head * tree.num_chunks * num_floats;
    PackedRows<T>(problem, tree, part.kv_head)
        .attend_chunk(part.chunk, SoftmaxState(states + part.chunk * num_floats, num_packed, problem.head_size));
    if (pending_of(part).fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    SoftmaxState total(states, num_packed, problem.head_size);  // whoever ends last folds, in slot order
    for (int64_t chunk = 1; chunk < tree.num_chunks; ++chunk) {
      total.fold(SoftmaxState(states + chunk * num_floats, num_packed, problem.head_size), num_packed,
                 problem.head_size);
    }
    finish_rows(problem, tree, part.kv_head, total);
  });
}

}  // namespace

void tree_attention_cpu(at::Tensor& out, const at::Tensor& query, const at::Tensor& key_cache,
                        const at::Tensor& value_cache, const at::Tensor& block_table, const at::Tensor& req_indices,
                        const at::Tensor& query_starts, const at::Tensor& context_lens, const at::Tensor& cu_num_rows,
                        const at::Tensor& depths, const at::Tensor& ancestor_masks, double scale,
                        int64_t sliding_window, double softcap, const std::optional<at::Tensor>& sinks) {
  check_tree_attention(out, query, key_cache, value_cache, block_table, req_indices, query_starts, context_lens,
                       cu_num_rows, depths, ancestor_masks, softcap, sinks);
  if (depths.numel() == 0) return;
  const double base2 = softcap > 0 ? 1.0 / softcap : kLog2E;  // a capped score gets its log2(e) after the tanh
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, query.scalar_type(), "tree_attention", [&] {
    if constexpr (!std::is_same_v<scalar_t, double>) {
      Problem<scalar_t> problem;
      problem.out = out.mutable_data_ptr<scalar_t>();
      problem.query = query.const_data_ptr<scalar_t>();
      problem.keys = key_cache.const_data_ptr<scalar_t>();
      problem.values = value_cache.const_data_ptr<scalar_t>();
      problem.block_table = block_table.const_data_ptr<int32_t>();
      problem.depths = depths.const_data_ptr<int32_t>();
      problem.ancestor_masks = ancestor_masks.const_data_ptr<int64_t>();
      problem.sinks = sinks.has_value() ? sinks->const_data_ptr<float>() : nullptr;
      problem.out_stride = out.stride(0);
      problem.query_stride = query.stride(0);
      problem.key_block_stride = key_cache.stride(0);
      problem.key_head_stride = key_cache.stride(1);
      problem.key_dim_stride = key_cache.stride(2);
      problem.value_block_stride = value_cache.stride(0);
      problem.value_head_stride = value_cache.stride(1);
      problem.value_slot_stride = value_cache.stride(2);
      problem.table_stride = block_table.stride(0);
      problem.num_kv_heads = key_cache.size(1);
      problem.group = query.size(1) / key_cache.size(1);
      problem.head_size = query.size(2);
      problem.block_size = key_cache.size(3);
      problem.num_words = ancestor_masks.size(1);
      problem.window = sliding_window;
      problem.query_scale = static_cast<float>(scale * base2);
      problem.softcap = static_cast<float>(softcap * kLog2E);
      std::vector<Tree> trees;
      const int64_t split_floats = plan(problem, req_indices, query_starts, context_lens, cu_num_rows, &trees);
      attend_trees(problem, trees, split_floats);
    }
  });
}

}  // namespace tlt_engine
