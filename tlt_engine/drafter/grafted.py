"""The learned drafter and the model-free one under one node budget."""

from collections.abc import Sequence

from tlt_engine.drafter.learned import LearnedDrafter
from tlt_engine.spec.drafter import DraftRequest, FinishReason
from tlt_engine.spec.prompt_lookup import PromptLookup
from tlt_engine.spec.tree import DraftTree


class GraftedDrafter:
    """Asks both and unites their trees."""

    def __init__(self, learned: LearnedDrafter, lookup: PromptLookup) -> None:
        self._learned = learned
        self._lookup = lookup

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftTree]:
        """Returns one tree a request, the likeliest nodes of both by estimates that were calibrated together."""
        return self._lookup.propose(requests, self._learned.propose(requests))

    def observe(self, req_id: str, tree: DraftTree, accepted_nodes: Sequence[int]) -> None:
        """Tells both."""
        self._learned.observe(req_id, tree, accepted_nodes)
        self._lookup.observe(req_id, tree, accepted_nodes)

    def finish(self, req_id: str, reason: FinishReason) -> None:
        """Tells both."""
        self._learned.finish(req_id, reason)
        self._lookup.finish(req_id, reason)

    def set_target_version(self, target_version: int) -> None:
        """Tells both."""
        self._learned.set_target_version(target_version)
        self._lookup.set_target_version(target_version)

    def num_bytes(self) -> dict[str, tuple[int, int]]:
        """Returns the buffers of both."""
        return {**self._learned.num_bytes(), **self._lookup.num_bytes()}
