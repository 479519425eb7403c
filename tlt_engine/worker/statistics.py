"""Counts of what was drafted and accepted, for ``/tlt/status``; vLLM's own metrics count the same from outside."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tlt_engine.spec.tree import DraftTree


class Statistics:
    """Cumulative counters of one worker."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_drafts = 0
        self.num_draft_tokens = 0
        self.largest_tree = 0
        self.num_accepted = 0
        self.num_emitted = 0
        self.num_kv_moves = 0
        self._drafted_by_source: Counter[str] = Counter()
        self._accepted_by_source: Counter[str] = Counter()
        self._drafts_reaching_depth: Counter[int] = Counter()

    def count_request(self, tree: DraftTree, accepted_nodes: Sequence[int]) -> None:
        """Counts one request of a step: its verified tree and the accepted nodes in path order."""
        self.num_emitted += len(accepted_nodes) + 1
        if not len(tree):
            return
        self.num_drafts += 1
        self.num_draft_tokens += len(tree)
        self.largest_tree = max(self.largest_tree, len(tree))
        self.num_accepted += len(accepted_nodes)
        for depth in range(1, len(accepted_nodes) + 1):
            self._drafts_reaching_depth[depth] += 1
        if tree.sources:
            self._drafted_by_source.update(tree.sources)
            self._accepted_by_source.update(tree.sources[node] for node in accepted_nodes)

    def snapshot(self) -> dict[str, Any]:
        """Returns the counters and the ratios a reader wants."""
        return {
            "steps": self.num_steps,
            "drafts": self.num_drafts,
            "draft_tokens": self.num_draft_tokens,
            "largest_tree": self.largest_tree,
            "accepted_draft_tokens": self.num_accepted,
            "emitted_tokens": self.num_emitted,
            "kv_moves": self.num_kv_moves,
            "tokens_per_step": self.num_emitted / max(1, self.num_steps),
            "acceptance_length": 1 + self.num_accepted / self.num_drafts if self.num_drafts else None,
            "acceptance_rate_by_depth": [
                self._drafts_reaching_depth[depth] / self.num_drafts
                for depth in range(1, max(self._drafts_reaching_depth, default=0) + 1)
            ],
            "sources": {
                source: {
                    "draft_tokens": drafted,
                    "accepted": self._accepted_by_source[source],
                    "hit_rate": self._accepted_by_source[source] / drafted,
                }
                for source, drafted in sorted(self._drafted_by_source.items())
            },
        }
