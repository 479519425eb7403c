#include <algorithm>

#include "common/checks.h"
#include "kv_compact/kv_compact.h"

namespace tlt_engine {

void check_kv_compact(at::TensorList planes, const at::Tensor& src_slots, const at::Tensor& dst_slots,
                      const at::Tensor& cu_moves) {
  const char* op = "kv_compact";
  check_vector(src_slots, op, "src_slots", at::kLong);
  check_vector(dst_slots, op, "dst_slots", at::kLong);
  check_vector(cu_moves, op, "cu_moves", at::kInt);
  check_length(dst_slots, op, "dst_slots", src_slots.size(0));
  TORCH_CHECK(cu_moves.size(0) >= 1, op, ": cu_moves must have num_reqs + 1 entries, but is empty");
  check_same_device(dst_slots, op, "dst_slots", src_slots);
  check_same_device(cu_moves, op, "cu_moves", src_slots);
  int64_t num_slots = INT64_MAX;
  for (const at::Tensor& plane : planes) {
    TORCH_CHECK(plane.dim() == 4, op,
                ": a plane must be [num_blocks, block_size, num_kv_heads, head_size], but has shape ", plane.sizes());
    const int64_t bytes = plane.element_size();
    TORCH_CHECK(bytes == 1 || bytes == 2 || bytes == 4, op, ": a plane's elements must have 1, 2 or 4 bytes, but ",
                plane.scalar_type(), " has ", bytes);
    TORCH_CHECK(plane.numel() > 0, op, ": a plane must not be empty, but has shape ", plane.sizes());
    check_same_device(plane, op, "a plane", src_slots);
    num_slots = std::min(num_slots, plane.size(0) * plane.size(1));
  }
  if (!src_slots.is_cpu()) return;
  check_prefix_sums(cu_moves, op, "cu_moves", src_slots.size(0));
  if (planes.empty()) return;
  const int64_t* sources = src_slots.const_data_ptr<int64_t>();
  const int64_t* destinations = dst_slots.const_data_ptr<int64_t>();
  const int32_t num_moves = cu_moves.const_data_ptr<int32_t>()[cu_moves.size(0) - 1];
  for (int64_t move = 0; move < num_moves; ++move) {
    for (const int64_t slot : {sources[move], destinations[move]}) {
      TORCH_CHECK(slot >= 0 && slot < num_slots, op, ": slots must be in [0, ", num_slots, "), but move ", move,
                  " names ", slot);
    }
  }
}

}  // namespace tlt_engine
