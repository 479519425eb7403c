"""The learned drafter behind the protocol that every drafter obeys."""

from collections.abc import Sequence

from tlt_engine.drafter.feature_ring import FeatureRing
from tlt_engine.drafter.runtime import DrafterRuntime
from tlt_engine.spec.drafter import DraftRequest, FinishReason
from tlt_engine.spec.tree import DraftTree


class LearnedDrafter:
    """Drafts with the network, for requests whose features are in the ring."""

    def __init__(self, runtime: DrafterRuntime, ring: FeatureRing) -> None:
        self.runtime = runtime
        self._ring = ring

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftTree]:
        """Returns one tree a request; nodes carry the estimated probability of their path."""
        return self.runtime.draft(requests)

    def observe(self, req_id: str, tree: DraftTree, accepted_nodes: Sequence[int]) -> None:
        """Does nothing: the features of what was accepted are in the ring."""

    def finish(self, req_id: str, reason: FinishReason) -> None:
        """Frees what was kept of a request."""
        if req_id in self._ring:
            self.runtime.keys.forget(self._ring.slot(req_id))
            self._ring.drop(req_id)

    def set_target_version(self, target_version: int) -> None:
        """Does nothing: features of running requests are those their tokens were drawn with."""

    def num_bytes(self) -> dict[str, tuple[int, int]]:
        """Returns the bytes of the ring, the keys and the weights, which are all allocated at the start."""
        sizes = {
            "drafter.features": self._ring.num_bytes(),
            "drafter.keys": self.runtime.keys.num_bytes(),
            "drafter.weights": self.runtime.num_weight_bytes,
        }
        return {name: (size, size) for name, size in sizes.items()}
