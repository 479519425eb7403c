// Task: per request, the path from the root along which every draft token is the token the target chose.
//
// Memory: the rows of all requests lie one after the other; cu_num_rows holds the prefix sums. A parent is named by its
// row within the request.
//
// Invariant: a parent's row is smaller than its own, so one sweep in row order meets every child after its parent, and
// the first matching child it meets is the lowest one.
//
// Parallelisation: one block a request. The block stages the request's rows in shared memory, which hides the latency
// of the loads; the walk itself is a chain of dependent reads and stays on one thread.
#pragma once

#include <cstdint>

#include "common/host_device.h"

namespace tlt_engine {

// Writes the accepted rows in path order, root excluded, and returns how many there are.
// accepted_rows must hold num_rows - 1 entries; entries past the result are left untouched.
TLT_HOST_DEVICE int32_t accepted_path(const int32_t* parent_rows, const int64_t* draft_token_ids,
                                      const int64_t* target_token_ids, int32_t num_rows, int32_t* accepted_rows) {
  int32_t tip = 0;
  int32_t num_accepted = 0;
  for (int32_t row = 1; row < num_rows; ++row) {
    const bool is_chosen = target_token_ids[tip] >= 0 && draft_token_ids[row] == target_token_ids[tip];
    if (parent_rows[row] == tip && is_chosen) {
      accepted_rows[num_accepted++] = row;
      tip = row;
    }
  }
  return num_accepted;
}

// Shared memory a block needs for a request of that many rows.
TLT_HOST_DEVICE int64_t tree_accept_shared_bytes(int64_t num_rows) {
  return num_rows * static_cast<int64_t>(2 * sizeof(int64_t) + sizeof(int32_t));
}

#if defined(__CUDACC__)

// Dynamic shared memory: tree_accept_shared_bytes(max_accepted + 1).
__global__ void tree_accept_kernel(const int32_t* parent_rows, const int64_t* draft_token_ids,
                                   const int64_t* target_token_ids, const int32_t* cu_num_rows, int32_t max_accepted,
                                   int32_t* accepted_rows, int32_t* num_accepted) {
  extern __shared__ int64_t shared_rows[];
  const int32_t max_rows = max_accepted + 1;
  int64_t* shared_drafts = shared_rows;
  int64_t* shared_targets = shared_drafts + max_rows;
  int32_t* shared_parents = reinterpret_cast<int32_t*>(shared_targets + max_rows);

  const int32_t first_row = cu_num_rows[blockIdx.x];
  const int32_t num_rows = min(cu_num_rows[blockIdx.x + 1] - first_row, max_rows);
  int32_t* path = accepted_rows + static_cast<int64_t>(blockIdx.x) * max_accepted;
  for (int32_t row = threadIdx.x; row < num_rows; row += blockDim.x) {
    shared_parents[row] = parent_rows[first_row + row];
    shared_drafts[row] = draft_token_ids[first_row + row];
    shared_targets[row] = target_token_ids[first_row + row];
  }
  for (int32_t entry = threadIdx.x; entry < max_accepted; entry += blockDim.x) path[entry] = -1;
  __syncthreads();
  if (threadIdx.x == 0) {
    num_accepted[blockIdx.x] = accepted_path(shared_parents, shared_drafts, shared_targets, num_rows, path);
  }
}

#endif

}  // namespace tlt_engine
