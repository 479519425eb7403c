// Entry points of kv_compact; the contract is documented in ops.py.
#pragma once

#include <ATen/core/Tensor.h>

#include "kv_compact/kv_compact.cuh"

namespace tlt_engine {

void check_kv_compact(at::TensorList planes, const at::Tensor& src_slots, const at::Tensor& dst_slots,
                      const at::Tensor& cu_moves);

// A checked plane tensor as the kernels see it, in its widest units.
inline PlaneDescriptor describe_plane(const at::Tensor& plane) {
  const int64_t element_bytes = plane.element_size();
  return with_wide_units(
      {static_cast<char*>(plane.mutable_data_ptr()), plane.stride(0) * element_bytes, plane.stride(1) * element_bytes,
       plane.stride(2) * element_bytes, plane.stride(3) * element_bytes, static_cast<int32_t>(plane.size(1)),
       static_cast<int32_t>(plane.size(2)), static_cast<int32_t>(plane.size(3)), static_cast<int32_t>(element_bytes)});
}

void kv_compact_cpu(at::TensorList planes, const at::Tensor& src_slots, const at::Tensor& dst_slots,
                    const at::Tensor& cu_moves);

void kv_compact_cuda(at::TensorList planes, const at::Tensor& src_slots, const at::Tensor& dst_slots,
                     const at::Tensor& cu_moves);

}  // namespace tlt_engine
