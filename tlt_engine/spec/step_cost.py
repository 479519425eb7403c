"""Measured cost of one target step against the rows it verifies, and how many draft rows that cost justifies."""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from tlt_engine.spec.tree import ROOT, DraftTree

KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Row counts at which the cost is kept; between them it is interpolated."""

WINDOW = 32
"""Measurements kept for each knot: enough for a median to ignore a busy machine, few enough to follow contexts."""

PRIOR_COST_PER_ROW = 0.03
"""Relative cost of a row before anything is measured (SmolLM2-135M, 1 core: 8 rows cost 1.22 plain steps)."""


class StepCost:
    """Predicts seconds of a step from its rows: medians of what was measured, a prior ratio where nothing was."""

    def __init__(self) -> None:
        self._measured: dict[int, deque[float]] = {}
        self._curve: list[float] | None = None

    @property
    def is_measured(self) -> bool:
        """Whether predictions are seconds; before the first measurement they are plain steps."""
        return bool(self._measured)

    def record(self, rows: int, seconds: float) -> None:
        """Adds one measured step that verified ``rows`` rows and prefilled nothing."""
        self._measured.setdefault(nearest_knot(rows), deque(maxlen=WINDOW)).append(seconds)
        self._curve = None

    def predict(self, rows: int) -> float:
        """Returns the expected seconds of a step with ``rows`` rows; only ratios mean anything before measurements."""
        curve = self._curve or self._fit()
        right = bisect_left(KNOTS, rows)
        if right == 0:
            return curve[0]
        if right == len(KNOTS):
            return curve[-1] * rows / KNOTS[-1]
        low, high = KNOTS[right - 1], KNOTS[right]
        share = (rows - low) / (high - low)
        return curve[right - 1] * (1 - share) + curve[right] * share

    def _fit(self) -> list[float]:
        medians = {knot: median(seconds) for knot, seconds in self._measured.items()}
        curve = [medians[knot] if knot in medians else _scaled_prior(knot, medians) for knot in KNOTS]
        for i in range(1, len(curve)):  # more rows never take less time; a lower median there is noise
            curve[i] = max(curve[i], curve[i - 1])
        self._curve = curve
        return curve


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


def nearest_knot(rows: int) -> int:
    """Returns the row count at which ``rows`` is kept: the nearest by ratio."""
    return min(KNOTS, key=lambda knot: max(knot, rows) / max(1, min(knot, rows)))


def _scaled_prior(knot: int, medians: dict[int, float]) -> float:
    """Cost of an unmeasured size: the prior's ratio to the nearest measured one, or the measured slope if steeper."""
    prior = 1.0 + PRIOR_COST_PER_ROW * (knot - 1)
    if not medians:
        return prior
    nearest = min(medians, key=lambda measured: max(knot, measured) / min(knot, measured))
    estimate = prior * medians[nearest] / (1.0 + PRIOR_COST_PER_ROW * (nearest - 1))
    *_, low, high = [min(medians), *sorted(medians)]
    if knot > high > low:
        slope = (medians[high] - medians[low]) / (high - low)
        estimate = max(estimate, medians[high] + slope * (knot - high))
    return estimate
