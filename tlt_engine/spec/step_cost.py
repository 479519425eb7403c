"""Cost of one target step against the rows it verifies, and how many draft rows that cost justifies."""

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from tlt_engine.spec.tree import ROOT, DraftTree

WINDOW = 32
"""Latest measurements a median is taken over: enough to ignore a busy machine, few enough to follow contexts."""

PRIOR_PROFILE = {1: 1.0, 33: 2.0}
"""Relative cost before anything is known: a step reads the weights once whatever its rows."""

PROFILE_WEIGHT = 8.0
"""Measurements of one row count that the profile is worth."""


class StepCost:
    """Predicts seconds of a step from its rows.

    The curve has steps and dips (matrix kernels work on blocks of rows: SmolLM2-135M on one core takes 46 ms for one
    row, 56 for two, 41 for three to six and 53 for seven), so it is taken from a profile, row count by row count.
    Serving corrects the profile in two ways: one level for all row counts, because contexts and the machine change,
    and a correction for each row count that was seen often.
    """

    def __init__(self) -> None:
        self._level: float | None = None
        self._levels: deque[float] = deque(maxlen=WINDOW)
        self._corrections: dict[int, deque[float]] = {}
        self._relative: list[float] = []
        self.set_profile(PRIOR_PROFILE)

    @property
    def is_measured(self) -> bool:
        """Whether predictions are seconds; before the first measurement they are those of the profile."""
        return self._level is not None

    def set_profile(self, profile: Mapping[int, float]) -> None:
        """Replaces the shape of the curve.

        Args:
            profile: cost by rows, in any unit; between its sizes the cost is taken as linear, beyond them its last
                two go on.
        """
        self._sizes = sorted(profile)
        self._costs = [profile[size] for size in self._sizes]
        self._level = None
        self._levels.clear()
        self._corrections.clear()
        self._relative.clear()

    def record(self, rows: int, seconds: float) -> None:
        """Adds one measured step that verified ``rows`` rows and prefilled nothing."""
        level = seconds / self._profile(rows)
        self._levels.append(level)
        self._level = median(self._levels)
        self._corrections.setdefault(rows, deque(maxlen=WINDOW)).append(level / self._level)
        if rows <= len(self._relative):
            self._relative[rows - 1] = self._corrected(rows)

    def predict(self, rows: int) -> float:
        """Returns the expected seconds of a step with ``rows`` rows; only ratios mean anything before measurements."""
        for unknown in range(len(self._relative) + 1, rows + 1):
            self._relative.append(self._corrected(unknown))
        return self._relative[rows - 1] * (1.0 if self._level is None else self._level)

    def _corrected(self, rows: int) -> float:
        seen = self._corrections.get(rows, ())
        correction = (PROFILE_WEIGHT + len(seen) * median(seen)) / (PROFILE_WEIGHT + len(seen)) if seen else 1.0
        return self._profile(rows) * correction

    def _profile(self, rows: int) -> float:
        if rows <= self._sizes[-1] or len(self._sizes) == 1:
            return float(np.interp(rows, self._sizes, self._costs))
        (size, last_size), (cost, last_cost) = self._sizes[-2:], self._costs[-2:]
        slope = max(0.0, (last_cost - cost) / (last_size - size))
        return last_cost + slope * (rows - last_size)


class ChosenRows(NamedTuple):
    """Draft trees cut to what pays."""

    trees: list[DraftTree]
    """One a candidate, in order, each closed under taking parents."""
    saved_seconds: float
    """Expected time that plain steps would have taken for the same tokens, minus the time of this step."""


def choose_draft_rows(
    trees: Sequence[DraftTree], step_cost: StepCost, *, num_reqs: int, max_rows: int | None
) -> ChosenRows:
    """Cuts the candidate trees to the nodes that raise emitted tokens per second of the whole step.

    Nodes of all requests compete in one order, the likeliest first, so rows go where the expected gain is largest.
    Nodes of a drafter without estimates count as certain.

    Args:
        trees: candidate tree of each request that may draft.
        step_cost: predicts the seconds of the step.
        num_reqs: requests of the step, those without candidates included; each needs one row.
        max_rows: most rows of the step; None for no cap.

    Returns:
        The chosen rows and what they save.
    """
    ranked: list[tuple[float, int, int]] = []
    for index, tree in enumerate(trees):
        reach: list[float] = []
        for node, parent in enumerate(tree.parents):
            prob = tree.probs[node] if tree.probs else 1.0
            reach.append(prob if parent == ROOT else min(prob, reach[parent]))
            ranked.append((-reach[node], index, node))
    ranked.sort()
    limit = len(ranked) if max_rows is None else max(0, min(len(ranked), max_rows - num_reqs))

    plain_seconds = step_cost.predict(num_reqs)
    best_count, best_rate, expected = 0, num_reqs / plain_seconds, float(num_reqs)
    saved_seconds = 0.0
    for count in range(1, limit + 1):
        expected -= ranked[count - 1][0]
        rate = expected / step_cost.predict(num_reqs + count)
        if rate > best_rate:
            best_count, best_rate = count, rate
            saved_seconds = expected / num_reqs * plain_seconds - step_cost.predict(num_reqs + count)

    chosen: list[list[int]] = [[] for _ in trees]
    for _, index, node in ranked[:best_count]:
        chosen[index].append(node)
    cut = [tree.select(sorted(nodes)) for tree, nodes in zip(trees, chosen, strict=True)]
    return ChosenRows(cut, saved_seconds)
