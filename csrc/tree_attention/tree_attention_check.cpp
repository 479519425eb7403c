#include <ATen/ATen.h>

#include "tree_attention.h"

namespace tlt_engine {
namespace {

void check_int32_vector(const at::Tensor& tensor, const char* name, int64_t size) {
  TORCH_CHECK(tensor.scalar_type() == at::kInt && tensor.dim() == 1 && tensor.is_contiguous() && tensor.numel() == size,
              "tree_attention: ", name, " must be a contiguous int32 vector of ", size, " entries, got ",
              tensor.scalar_type(), " of shape ", tensor.sizes());
}

// The tensors are in host memory, so their values are checked too: a wrong index would read foreign memory.
void check_ranges(const at::Tensor& query, const at::Tensor& block_table, const at::Tensor& req_indices,
                  const at::Tensor& query_starts, const at::Tensor& context_lens, const at::Tensor& cu_num_rows,
                  int64_t total_rows, int64_t mask_bits, int64_t block_size) {
  const int32_t* cu = cu_num_rows.const_data_ptr<int32_t>();
  const int32_t* starts = query_starts.const_data_ptr<int32_t>();
  const int32_t* contexts = context_lens.const_data_ptr<int32_t>();
  const int32_t* reqs = req_indices.const_data_ptr<int32_t>();
  TORCH_CHECK(cu[0] == 0, "tree_attention: cu_num_rows must start with 0, got ", cu[0]);
  for (int64_t tree = 0; tree < req_indices.numel(); ++tree) {
    const int64_t num_rows = static_cast<int64_t>(cu[tree + 1]) - cu[tree];
    TORCH_CHECK(num_rows >= 0 && num_rows <= mask_bits, "tree_attention: tree ", tree, " has ", num_rows,
                " rows, ancestor_masks holds 0 to ", mask_bits);
    TORCH_CHECK(starts[tree] >= 0 && starts[tree] + num_rows <= query.size(0), "tree_attention: rows ", starts[tree],
                " + ", num_rows, " of tree ", tree, " lie outside the query's ", query.size(0), " tokens");
    TORCH_CHECK(reqs[tree] >= 0 && reqs[tree] < block_table.size(0), "tree_attention: req_indices[", tree,
                "] = ", reqs[tree], " lies outside block_table's ", block_table.size(0), " rows");
    TORCH_CHECK(contexts[tree] >= 0 && contexts[tree] + num_rows <= block_table.size(1) * block_size,
                "tree_attention: context ", contexts[tree], " + ", num_rows, " rows of tree ", tree,
                " exceed the block table's ", block_table.size(1), " blocks of ", block_size);
  }
  TORCH_CHECK(cu[req_indices.numel()] == total_rows, "tree_attention: cu_num_rows ends with ", cu[req_indices.numel()],
              ", depths has ", total_rows, " rows");
}

}  // namespace

void check_tree_attention(const at::Tensor& out, const at::Tensor& query, const at::Tensor& key_cache,
                          const at::Tensor& value_cache, const at::Tensor& block_table, const at::Tensor& req_indices,
                          const at::Tensor& query_starts, const at::Tensor& context_lens, const at::Tensor& cu_num_rows,
                          const at::Tensor& depths, const at::Tensor& ancestor_masks, double softcap,
                          const std::optional<at::Tensor>& sinks) {
  const auto dtype = query.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf,
              "tree_attention: query must be float32, bfloat16 or float16, got ", dtype);
  TORCH_CHECK(out.scalar_type() == dtype && key_cache.scalar_type() == dtype && value_cache.scalar_type() == dtype,
              "tree_attention: out, key_cache and value_cache must have the query's dtype ", dtype, ", got ",
              out.scalar_type(), ", ", key_cache.scalar_type(), " and ", value_cache.scalar_type());
  TORCH_CHECK(query.dim() == 3 && out.sizes() == query.sizes(),
              "tree_attention: query and out must both be [num_tokens, num_heads, head_size], got ", query.sizes(),
              " and ", out.sizes());
  const int64_t num_heads = query.size(1);
  const int64_t head_size = query.size(2);
  for (const at::Tensor* rows : {&query, &out}) {
    TORCH_CHECK(rows->stride(2) == 1 && rows->stride(1) == head_size,
                "tree_attention: the heads of one token must be contiguous in query and out, got strides ",
                rows->strides());
  }
  TORCH_CHECK(head_size > 0 && head_size % 16 == 0, "tree_attention: head_size must be a multiple of 16, got ",
              head_size);
  TORCH_CHECK(key_cache.dim() == 4 && value_cache.dim() == 4, "tree_attention: the caches must have 4 dimensions, got ",
              key_cache.dim(), " and ", value_cache.dim());
  const int64_t num_kv_heads = key_cache.size(1);
  const int64_t block_size = key_cache.size(3);
  TORCH_CHECK(num_kv_heads > 0 && num_heads % num_kv_heads == 0, "tree_attention: ", num_heads,
              " query heads cannot share ", num_kv_heads, " kv heads evenly");
  TORCH_CHECK(block_size > 0 && block_size % 32 == 0, "tree_attention: block_size must be a multiple of 32, got ",
              block_size);
  TORCH_CHECK(key_cache.size(2) == head_size && key_cache.stride(3) == 1,
              "tree_attention: key_cache must be [num_blocks, num_kv_heads, head_size, block_size] with stride 1 along "
              "block_size, got shape ",
              key_cache.sizes(), " and strides ", key_cache.strides());
  TORCH_CHECK(value_cache.size(0) == key_cache.size(0) && value_cache.size(1) == num_kv_heads &&
                  value_cache.size(2) == block_size && value_cache.size(3) == head_size && value_cache.stride(3) == 1,
              "tree_attention: value_cache must be [num_blocks, num_kv_heads, block_size, head_size] with stride 1 "
              "along head_size, got shape ",
              value_cache.sizes(), " and strides ", value_cache.strides());
  TORCH_CHECK(block_table.scalar_type() == at::kInt && block_table.dim() == 2 && block_table.stride(1) == 1,
              "tree_attention: block_table must be int32 [max_reqs, max_blocks] with contiguous rows, got ",
              block_table.scalar_type(), " of shape ", block_table.sizes());
  const int64_t num_trees = req_indices.numel();
  check_int32_vector(req_indices, "req_indices", num_trees);
  check_int32_vector(query_starts, "query_starts", num_trees);
  check_int32_vector(context_lens, "context_lens", num_trees);
  check_int32_vector(cu_num_rows, "cu_num_rows", num_trees + 1);
  check_int32_vector(depths, "depths", depths.numel());
  TORCH_CHECK(ancestor_masks.scalar_type() == at::kLong && ancestor_masks.dim() == 2 &&
                  ancestor_masks.is_contiguous() && ancestor_masks.size(0) == depths.numel(),
              "tree_attention: ancestor_masks must be contiguous int64 [", depths.numel(), ", num_words], got ",
              ancestor_masks.scalar_type(), " of shape ", ancestor_masks.sizes());
  TORCH_CHECK(softcap >= 0, "tree_attention: softcap must be 0 (off) or positive, got ", softcap);
  if (sinks.has_value()) {
    TORCH_CHECK(sinks->scalar_type() == at::kFloat && sinks->dim() == 1 && sinks->is_contiguous() &&
                    sinks->numel() == num_heads,
                "tree_attention: sinks must be a contiguous float32 vector of ", num_heads, " entries, got ",
                sinks->scalar_type(), " of shape ", sinks->sizes());
  }
  check_ranges(query, block_table, req_indices, query_starts, context_lens, cu_num_rows, depths.numel(),
               ancestor_masks.size(1) * 64, block_size);
}

}  // namespace tlt_engine
