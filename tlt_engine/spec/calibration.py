"""What a suffix-tree continuation is worth: the share of such tokens that the target really emitted."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

ROOT = -1

LONGEST_CONTEXT = 12
"""Contexts this long or longer share one estimate; a longer match hardly tells more."""

FREQUENCY_EDGES = (0.1, 0.25, 0.5, 0.999)
"""Edges of the classes of relative frequency among a context's continuations; the last class is "always so far"."""

PRIOR_TRUST = 0.5
"""Before anything is seen, a continuation is emitted half as often as its relative frequency says: a tree over a few
thousand tokens has seen most of its contexts once."""

PRIOR_WEIGHT = 4.0
"""Observations that the prior is worth."""

MEMORY = 4000.0
"""Observations of one class after which old ones fade, so that the estimate follows the traffic."""


@dataclass(frozen=True)
class Continuation:
    """One node of a source's continuation tree."""

    token_id: int
    parent: int
    """Index of the parent in the same tree, or -1."""
    source: str
    context_len: int
    """Tokens, matched or assumed, that stand before this one in the suffix tree."""
    frequency: float
    """Share of the parent's occurrences that continued with this token."""


class Calibration:
    """Acceptance estimates by source, context length and relative frequency.

    Every continuation is scored against the tokens that were emitted, whether it was verified or not, so that the
    estimates need no exploration and choosing by them does not bias them.
    """

    def __init__(self) -> None:
        self._hits: dict[tuple[str, int, int], list[float]] = {}

    def estimate(self, continuation: Continuation) -> float:
        """Returns the probability that the target emits this token if it emitted the parent."""
        seen, hit = self._hits.get(_class_of(continuation), (0.0, 0.0))
        prior = PRIOR_TRUST * continuation.frequency
        return (hit + PRIOR_WEIGHT * prior) / (seen + PRIOR_WEIGHT)

    def learn(self, continuations: Sequence[Continuation], emitted: Sequence[int]) -> None:
        """Scores the nodes whose parents were emitted.

        Args:
            continuations: one tree, parents before children.
            emitted: the tokens the target emitted from the tree's root on.
        """
        depth_of = {ROOT: 0}
        for node, continuation in enumerate(continuations):
            depth = depth_of.get(continuation.parent)
            if depth is None or depth >= len(emitted):
                continue
            is_hit = emitted[depth] == continuation.token_id
            if is_hit:
                depth_of[node] = depth + 1
            counts = self._hits.setdefault(_class_of(continuation), [0.0, 0.0])
            if counts[0] >= MEMORY:
                counts[0] /= 2
                counts[1] /= 2
            counts[0] += 1
            counts[1] += is_hit


def _class_of(continuation: Continuation) -> tuple[str, int, int]:
    return (
        continuation.source,
        min(continuation.context_len, LONGEST_CONTEXT),
        bisect_right(FREQUENCY_EDGES, continuation.frequency),
    )
