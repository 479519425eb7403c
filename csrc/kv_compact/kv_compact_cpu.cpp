#include <ATen/Parallel.h>

#include <vector>

#include "kv_compact/kv_compact.h"

namespace tlt_engine {

void kv_compact_cpu(at::TensorList planes, const at::Tensor& src_slots, const at::Tensor& dst_slots,
                    const at::Tensor& cu_moves) {
  check_kv_compact(planes, src_slots, dst_slots, cu_moves);
  const int64_t num_planes = static_cast<int64_t>(planes.size());
  const int64_t num_reqs = cu_moves.size(0) - 1;
  const int64_t* sources = src_slots.const_data_ptr<int64_t>();
  const int64_t* destinations = dst_slots.const_data_ptr<int64_t>();
  const int32_t* sums = cu_moves.const_data_ptr<int32_t>();
  if (num_reqs == 0 || sums[num_reqs] == 0) return;
  std::vector<PlaneDescriptor> descriptors;
  descriptors.reserve(num_planes);
  for (const at::Tensor& plane : planes) descriptors.push_back(describe_plane(plane));
  at::parallel_for(0, num_planes, 8, [&](int64_t begin, int64_t end) {
    std::vector<int64_t> slot_offsets(2 * sums[num_reqs]);
    for (int64_t plane = begin; plane < end; ++plane) {
      const PlaneDescriptor& descriptor = descriptors[plane];
      for (int64_t move = 0; move < sums[num_reqs]; ++move) {
        slot_offsets[2 * move] = slot_offset(descriptor, sources[move]);
        slot_offsets[2 * move + 1] = slot_offset(descriptor, destinations[move]);
      }
      for (int64_t req = 0; req < num_reqs; ++req) {
        if (sums[req] == sums[req + 1]) continue;
        move_units(descriptor, 0, 1, slot_offsets.data() + 2 * sums[req], sums[req + 1] - sums[req]);
      }
    }
  });
}

}  // namespace tlt_engine
