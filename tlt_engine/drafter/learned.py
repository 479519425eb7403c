"""The learned drafter behind the protocol that every drafter obeys."""

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from tlt_engine.drafter.feature_ring import FeatureRing
from tlt_engine.drafter.runtime import DrafterRuntime
from tlt_engine.spec.drafter import DraftRequest, FinishReason
from tlt_engine.spec.strategy import SpecStrategy
from tlt_engine.spec.tree import ROOT, DraftTree

TIMED_AT = (1, 4, 16)
"""Requests side by side that drafting is timed with."""

TIMED_ROUNDS = 3


class LearnedDrafter:
    """Drafts with the network, for requests whose features are in the ring."""

    def __init__(
        self, runtime: DrafterRuntime, ring: FeatureRing, on_guess: Callable[[bool], None] | None = None
    ) -> None:
        """Takes what runs the network.

        Args:
            runtime: the network.
            ring: the features it reads.
            on_guess: told, for each likeliest next token, whether the target emitted it.
        """
        self.runtime = runtime
        self._ring = ring
        self._on_guess = on_guess
        self._guesses: dict[str, tuple[int, int]] = {}

    def propose(self, requests: Sequence[DraftRequest], strategy: SpecStrategy | None = None) -> list[DraftTree]:
        """Returns one tree a request; nodes carry the estimated probability of their path.

        Args:
            requests: what to draft for.
            strategy: how deep and wide the trees grow; None for the most there is room for.
        """
        for request in requests:
            self._score_guess(request)
        if strategy is None:
            trees = self.runtime.draft(requests)
        else:
            trees = self.runtime.draft(requests, draft_depth=strategy.draft_depth, top_k=strategy.top_k)
        for request, tree in zip(requests, trees, strict=True):
            first_level = [node for node, parent in enumerate(tree.parents) if parent == ROOT]
            if first_level:
                likeliest = max(first_level, key=lambda node: tree.probs[node])
                self._guesses[request.req_id] = len(request.token_ids), tree.token_ids[likeliest]
        return trees

    def observe(self, req_id: str, tree: DraftTree, accepted_nodes: Sequence[int]) -> None:
        """Does nothing: the features of what was accepted are in the ring."""

    def finish(self, req_id: str, reason: FinishReason) -> None:
        """Frees what was kept of a request."""
        self._guesses.pop(req_id, None)
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

    def time_passes(self) -> dict[int, tuple[float, float]]:
        """Times drafting with an empty ring's features, before requests come.

        Returns:
            Seconds of the first pass and of each further one, by the number of requests side by side; nothing without
            weights.
        """
        depth = self.runtime.shape.draft_depth
        seconds: dict[int, tuple[float, float]] = {}
        if not self.runtime.has_weights:
            return seconds
        req_ids = [f"timing-{number}" for number in range(max(TIMED_AT))]
        admitted = [req_id for req_id in req_ids if self._ring.admit(req_id)]
        try:
            requests = []
            for req_id in admitted:
                _, slot = self._ring.reserve(req_id, 0, 1)
                self.runtime.keys.missing(slot, 0, 1)
                requests.append(DraftRequest(req_id, np.zeros(2, np.int32), 1, 64, seed=None, max_depth=depth))
            for num_reqs in (size for size in TIMED_AT if size <= len(requests)):
                first = self._fastest(requests[:num_reqs], 1)
                whole = self._fastest(requests[:num_reqs], depth)
                seconds[num_reqs] = first, max(0.0, whole - first) / max(1, depth - 1)
        finally:
            for req_id in admitted:
                self.finish(req_id, FinishReason.ABORTED)
        return seconds

    def _fastest(self, requests: Sequence[DraftRequest], depth: int) -> float:
        fastest = float("inf")
        for _ in range(TIMED_ROUNDS):
            started = time.perf_counter()
            self.runtime.draft(requests, draft_depth=depth)
            if self.runtime.device.type == "cuda":
                torch.cuda.synchronize(self.runtime.device)
            fastest = min(fastest, time.perf_counter() - started)
        return fastest

    def _score_guess(self, request: DraftRequest) -> None:
        position, token_id = self._guesses.pop(request.req_id, (0, 0))
        if self._on_guess is not None and 0 < position < len(request.token_ids):
            self._on_guess(int(request.token_ids[position]) == token_id)
