// Schemas of torch.ops.tlt_engine and their implementations. The Python module itself is empty: importing it loads
// this library, which registers the ops.
#include <Python.h>
#include <torch/library.h>

#include "draft_topk/draft_topk.h"
#include "gumbel_argmax/gumbel_argmax.h"
#include "kv_compact/kv_compact.h"
#include "tree_accept/tree_accept.h"
#include "tree_attention/tree_attention.h"
#include "tree_build/tree_build.h"
#include "window_attention/window_attention.h"

TORCH_LIBRARY(tlt_engine, m) {
  m.def(
      "tree_accept(Tensor parent_rows, Tensor draft_token_ids, Tensor target_token_ids, Tensor cu_num_rows, "
      "int max_accepted) -> (Tensor, Tensor)");
  m.def("tree_build(Tensor scores, Tensor parents, Tensor max_nodes, int width) -> (Tensor, Tensor)");
  m.def(
      "draft_topk(Tensor logits, Tensor vocabulary, Tensor temperature, Tensor seeds, Tensor positions, int top_k) "
      "-> (Tensor, Tensor)");
  m.def(
      "window_attention(Tensor query, Tensor keys, Tensor values, Tensor slots, Tensor starts, Tensor ends, "
      "Tensor visible, int num_scratch, int depth) -> Tensor");
  m.def("kv_compact(Tensor(a!)[] planes, Tensor src_slots, Tensor dst_slots, Tensor cu_moves) -> ()");
  m.def("gumbel_argmax(Tensor logits, Tensor temperature, Tensor seeds, Tensor positions) -> Tensor");
  m.def("gumbel_noise(Tensor seeds, Tensor positions, Tensor token_ids) -> Tensor");
  m.def(
      "tree_attention(Tensor(a!) out, Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, "
      "Tensor req_indices, Tensor query_starts, Tensor context_lens, Tensor cu_num_rows, Tensor depths, "
      "Tensor ancestor_masks, float scale, int sliding_window, float softcap, Tensor? sinks) -> ()");
}

TORCH_LIBRARY_IMPL(tlt_engine, CPU, m) {
  m.impl("tree_accept", &tlt_engine::tree_accept_cpu);
  m.impl("tree_build", &tlt_engine::tree_build_cpu);
  m.impl("draft_topk", &tlt_engine::draft_topk_cpu);
  m.impl("window_attention", &tlt_engine::window_attention_cpu);
  m.impl("kv_compact", &tlt_engine::kv_compact_cpu);
  m.impl("gumbel_argmax", &tlt_engine::gumbel_argmax_cpu);
  m.impl("gumbel_noise", &tlt_engine::gumbel_noise_cpu);
  m.impl("tree_attention", &tlt_engine::tree_attention_cpu);
}

#if defined(TLT_ENGINE_WITH_CUDA)
TORCH_LIBRARY_IMPL(tlt_engine, CUDA, m) {
  m.impl("tree_accept", &tlt_engine::tree_accept_cuda);
  m.impl("tree_build", &tlt_engine::tree_build_cuda);
  m.impl("kv_compact", &tlt_engine::kv_compact_cuda);
  m.impl("gumbel_argmax", &tlt_engine::gumbel_argmax_cuda);
}
#endif

extern "C" PyMODINIT_FUNC PyInit__C() {
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&module);
}
