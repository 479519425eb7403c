// Task: of each request's candidate nodes, the likeliest ones as a tree, parents before children.
//
// Memory: candidates of a request lie in one row, level by level, with the index of their parent in the same row.
//
// Invariant: a parent stands before its children and its score is not smaller, so with ties broken by index it ranks
// before them: any number of best-ranked candidates is closed under taking parents.
//
// Parallelisation: one block a request, one thread a candidate. Ranks are counted, not sorted: candidates are some
// hundreds, and every comparison is independent of every other.
#pragma once

#include <cstdint>

#include "common/host_device.h"

namespace tlt_engine {

// How many candidates come before this one: those of a larger score, and earlier ones of the same.
TLT_HOST_DEVICE int32_t candidate_rank(const float* scores, int32_t num_candidates, int32_t candidate) {
  const float own = scores[candidate];
  int32_t rank = 0;
  for (int32_t other = 0; other < num_candidates; ++other) {
    rank += scores[other] > own || (scores[other] == own && other < candidate);
  }
  return rank;
}

// Shared memory a block needs for that many candidates.
TLT_HOST_DEVICE int64_t tree_build_shared_bytes(int64_t num_candidates) {
  return num_candidates * static_cast<int64_t>(sizeof(float) + sizeof(int32_t));
}

#if defined(__CUDACC__)

// Dynamic shared memory: tree_build_shared_bytes(num_candidates).
__global__ void tree_build_kernel(const float* scores, const int32_t* parents, const int32_t* max_nodes,
                                  int32_t num_candidates, int32_t width, int32_t* nodes, int32_t* parent_places) {
  extern __shared__ float shared_scores[];
  int32_t* shared_places = reinterpret_cast<int32_t*>(shared_scores + num_candidates);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * num_candidates;
  int32_t* own_nodes = nodes + static_cast<int64_t>(blockIdx.x) * width;
  int32_t* own_parents = parent_places + static_cast<int64_t>(blockIdx.x) * width;
  const int32_t limit = min(max_nodes[blockIdx.x], width);
  for (int32_t candidate = threadIdx.x; candidate < num_candidates; candidate += blockDim.x) {
    shared_scores[candidate] = scores[first + candidate];
  }
  for (int32_t place = threadIdx.x; place < width; place += blockDim.x) own_nodes[place] = own_parents[place] = -1;
  __syncthreads();
  for (int32_t candidate = threadIdx.x; candidate < num_candidates; candidate += blockDim.x) {
    shared_places[candidate] = candidate_rank(shared_scores, num_candidates, candidate);
  }
  __syncthreads();
  for (int32_t candidate = threadIdx.x; candidate < num_candidates; candidate += blockDim.x) {
    const int32_t place = shared_places[candidate];
    if (place >= limit) continue;
    const int32_t parent = parents[first + candidate];
    own_nodes[place] = candidate;
    own_parents[place] = parent < 0 ? -1 : shared_places[parent];
  }
}

#endif

}  // namespace tlt_engine
