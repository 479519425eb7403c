#include <ATen/Parallel.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <vector>

#include "tree_build/tree_build.cuh"
#include "tree_build/tree_build.h"

namespace tlt_engine {

std::tuple<at::Tensor, at::Tensor> tree_build_cpu(const at::Tensor& scores, const at::Tensor& parents,
                                                  const at::Tensor& max_nodes, int64_t width) {
  check_tree_build(scores, parents, max_nodes, width);
  const int64_t num_reqs = scores.size(0);
  const int32_t num_candidates = static_cast<int32_t>(scores.size(1));
  at::Tensor nodes = at::full({num_reqs, width}, -1, parents.options());
  at::Tensor parent_places = at::full({num_reqs, width}, -1, parents.options());
  const float* all_scores = scores.const_data_ptr<float>();
  const int32_t* all_parents = parents.const_data_ptr<int32_t>();
  const int32_t* limits = max_nodes.const_data_ptr<int32_t>();
  int32_t* all_nodes = nodes.mutable_data_ptr<int32_t>();
  int32_t* all_places = parent_places.mutable_data_ptr<int32_t>();
  // Ranking 50 candidates takes a microsecond; below 16 requests a second thread costs more than it brings.
  at::parallel_for(0, num_reqs, 16, [&](int64_t begin, int64_t end) {
    std::vector<int32_t> places(num_candidates);
    for (int64_t req = begin; req < end; ++req) {
      const float* own_scores = all_scores + req * num_candidates;
      const int32_t limit = std::min<int32_t>(limits[req], static_cast<int32_t>(width));
      for (int32_t candidate = 0; candidate < num_candidates; ++candidate) {
        const int32_t place = candidate_rank(own_scores, num_candidates, candidate);
        const int32_t parent = all_parents[req * num_candidates + candidate];
        places[candidate] = place;
        if (place >= limit) continue;
        all_nodes[req * width + place] = candidate;
        all_places[req * width + place] = parent < 0 ? -1 : places[parent];  // parents come first
      }
    }
  });
  return {nodes, parent_places};
}

}  // namespace tlt_engine
