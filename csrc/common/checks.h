// The tensor checks that every op needs, each with one sentence that holds the offending value.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

namespace tlt_engine {

// A contiguous vector of one dtype.
inline void check_vector(const at::Tensor& tensor, const char* op, const char* name, at::ScalarType dtype) {
  TORCH_CHECK(tensor.dim() == 1, op, ": ", name, " must have 1 dimension, but has shape ", tensor.sizes());
  TORCH_CHECK(tensor.scalar_type() == dtype, op, ": ", name, " must be ", dtype, ", but is ", tensor.scalar_type());
  TORCH_CHECK(tensor.is_contiguous(), op, ": ", name, " must be contiguous, but has stride ", tensor.stride(0));
}

inline void check_length(const at::Tensor& tensor, const char* op, const char* name, int64_t length) {
  TORCH_CHECK(tensor.size(0) == length, op, ": ", name, " must have ", length, " entries, but has ", tensor.size(0));
}

inline void check_same_device(const at::Tensor& tensor, const char* op, const char* name, const at::Tensor& other) {
  TORCH_CHECK(tensor.device() == other.device(), op, ": ", name, " must be on ", other.device(), ", but is on ",
              tensor.device());
}

// Prefix sums of group sizes, readable without a sync because they lie on the CPU.
inline void check_prefix_sums(const at::Tensor& cu_sizes, const char* op, const char* name, int64_t total) {
  const int32_t* sums = cu_sizes.const_data_ptr<int32_t>();
  const int64_t num_groups = cu_sizes.size(0) - 1;
  TORCH_CHECK(sums[0] == 0, op, ": ", name, " must start at 0, but starts at ", sums[0]);
  for (int64_t group = 0; group < num_groups; ++group) {
    TORCH_CHECK(sums[group] <= sums[group + 1], op, ": ", name, " must not decrease, but goes from ", sums[group],
                " to ", sums[group + 1]);
  }
  TORCH_CHECK(sums[num_groups] <= total, op, ": ", name, " must end at no more than ", total, ", but ends at ",
              sums[num_groups]);
}

}  // namespace tlt_engine
