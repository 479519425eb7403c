"""What a candidate continuation is worth: the share of such tokens that the target really emitted."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

ROOT = -1

NOISE_EDGES = (-0.48, 0.09, 0.67, 1.50, 2.97)
"""Edges of the classes of noise: quantiles 0.2, 0.4, 0.6, 0.8 and 0.95 of the standard Gumbel law."""

PRIOR_WEIGHT = 4.0
"""Observations that a prior is worth."""

MEMORY = 4000.0
"""Observations of one class after which old ones fade, so that the estimate follows the traffic."""

Kind = tuple[str | int, ...]


class Continuation(NamedTuple):
    """One node of a source's continuation tree."""

    token_id: int
    parent: int
    """Index of the parent in the same tree, or -1."""
    kind: Kind
    """Its source, then the classes of whatever tells good continuations of this source from bad ones."""
    prior: float
    """Probability that the target emits it after its parent, before continuations of its kind were seen."""
    noise: float | None = None
    """Noise the token will be drawn with, where the kind does not speak of it; None if the request is greedy."""


class Calibration:
    """Acceptance estimates by kind, and by kind and noise.

    Every continuation is scored against the tokens that were emitted, whether it was verified or not, so that the
    estimates need no exploration and choosing by them does not bias them.
    """

    def __init__(self) -> None:
        self._counts: dict[Kind, list[float]] = {}

    def estimate(self, continuation: Continuation) -> float:
        """Returns the probability that the target emits this token if it emitted the parent."""
        prob = self._blend(continuation.kind, continuation.prior)
        if continuation.noise is None:
            return prob
        return self._blend(_with_noise(continuation), prob_given_noise(prob, continuation.noise))

    def reach(self, continuations: Sequence[Continuation]) -> list[float]:
        """Returns the probability that the target's path runs through each node of a tree, parents before children."""
        reach: list[float] = []
        for continuation in continuations:
            parent = continuation.parent
            prob = self.estimate(continuation)
            reach.append(prob if parent == ROOT else prob * reach[parent])
        return reach

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
            self._count(continuation.kind, is_hit)
            if continuation.noise is not None:
                self._count(_with_noise(continuation), is_hit)

    def _blend(self, kind: Kind, prior: float) -> float:
        seen, hit = self._counts.get(kind, (0.0, 0.0))
        return (hit + PRIOR_WEIGHT * prior) / (seen + PRIOR_WEIGHT)

    def _count(self, kind: Kind, is_hit: bool) -> None:
        counts = self._counts.setdefault(kind, [0.0, 0.0])
        if counts[0] >= MEMORY:
            counts[0] /= 2
            counts[1] /= 2
        counts[0] += 1
        counts[1] += is_hit


def prob_given_noise(prob: float, noise: float) -> float:
    """Returns the probability that a token is drawn, given its own noise.

    The others' best is Gumbel around ``log(1 - prob)``, so the token wins with probability
    ``exp(-(1 - prob) / prob * exp(-noise))``.

    Args:
        prob: probability of the token under the target.
        noise: standard Gumbel noise of the token.
    """
    if prob <= 0.0:
        return 0.0
    return math.exp(-min(700.0, (1.0 - min(prob, 1.0)) / prob * math.exp(-noise)))


def _with_noise(continuation: Continuation) -> Kind:
    assert continuation.noise is not None
    return (*continuation.kind, "noise", bisect_right(NOISE_EDGES, continuation.noise))
