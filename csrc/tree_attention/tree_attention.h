// Attention of draft trees over vLLM's paged CPU cache.
//
// Task: every row of a tree attends to the whole committed context of its request and, among the tree's own rows, to
// those set in its ancestor mask. A chain (or a single decode row) is a tree without branches.
//
// Memory: the stock "vec"/"vec16" layout. Inside one (block, kv head) the keys lie transposed, [head_size, block_size],
// so a vector load along block_size scores consecutive slots; the values lie [block_size, head_size], so a vector load
// along head_size accumulates them. Both are read in place. 16-bit entries are widened as they are loaded, by every
// tile again: widening a block once into scratch cost more (bfloat16, 9/3 heads of 64, context 1024, one thread, 8
// rows: 255 against 213 us; 4 rows: 183 against 109 us).
//
// Algorithm: flash attention over cache blocks. The rows of one tree and the query heads that share a kv head are
// packed into one matrix (rows x group), cut into tiles of at most kMaxTileRows rows that live in vector registers. Per
// block and tile: scores = Q K, mask, online softmax in base 2 (log2(e) is folded into the query scale), output += P V.
// Only blocks that hold tree rows, or that a sliding window cuts, take the masked path; blocks outside it are not read.
//
// Parallelisation and its invariant: a context is cut at fixed slots (multiples of a chunk). Each chunk starts from an
// empty softmax state, and the states are folded in slot order. Whether one thread walks all chunks of a (tree, kv
// head) or many share them, the same sums are formed in the same order: a row's bits depend neither on the number of
// threads nor on its batch neighbours, and a chain's rows get the bits that decoding them one at a time would give.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace tlt_engine {

// Throws if a dtype, a shape, a stride or an index range breaks the contract documented in ops.py.
void check_tree_attention(const at::Tensor& out, const at::Tensor& query, const at::Tensor& key_cache,
                          const at::Tensor& value_cache, const at::Tensor& block_table, const at::Tensor& req_indices,
                          const at::Tensor& query_starts, const at::Tensor& context_lens, const at::Tensor& cu_num_rows,
                          const at::Tensor& depths, const at::Tensor& ancestor_masks, double softcap,
                          const std::optional<at::Tensor>& sinks);

// Writes the rows of the listed trees into out and leaves every other row untouched.
void tree_attention_cpu(at::Tensor& out, const at::Tensor& query, const at::Tensor& key_cache,
                        const at::Tensor& value_cache, const at::Tensor& block_table, const at::Tensor& req_indices,
                        const at::Tensor& query_starts, const at::Tensor& context_lens, const at::Tensor& cu_num_rows,
                        const at::Tensor& depths, const at::Tensor& ancestor_masks, double scale,
                        int64_t sliding_window, double softcap, const std::optional<at::Tensor>& sinks);

}  // namespace tlt_engine
