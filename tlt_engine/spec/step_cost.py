"""Measured cost of one target step against the rows it verifies, and how many draft rows that cost justifies."""

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tlt_engine.spec.tree import ROOT, DraftTree

WINDOW = 32
"""Measurements kept for each row count: enough for a median to ignore a busy machine, few enough to follow contexts."""

PRIOR_COST_PER_ROW = 0.03
"""Relative cost of a row before anything is measured (SmolLM2-135M, 1 core: 8 rows cost 1.22 plain steps)."""

PRIOR_WEIGHT = 2.0
"""Measurements that the prior is worth at each of its sizes."""

PRIOR_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

BENDS = (0, 4, 8, 16, 32, 64, 128)
"""Row counts at which the cost may begin to rise more steeply."""

REFIT_EVERY = 16
"""Measurements between two fits."""

SWEEPS = 60
"""Rounds of coordinate descent in a fit."""


class StepCost:
    """Predicts seconds of a step from its rows.

    The curve is a rising, convex sum of hinges, fitted to the median of the measurements of each row count: a step
    reads the weights once whatever its rows, then arithmetic takes over, so one more row never gets cheaper. Convexity
    also makes the small differences between neighbouring sizes, which decide, robust against noise.
    """

    def __init__(self) -> None:
        self._measured: dict[int, deque[float]] = {}
        self._hinges = self._fit()
        self._num_since_fit = 0

    @property
    def is_measured(self) -> bool:
        """Whether predictions are seconds; before the first measurement they are plain steps."""
        return bool(self._measured)

    def record(self, rows: int, seconds: float) -> None:
        """Adds one measured step that verified ``rows`` rows and prefilled nothing."""
        self._measured.setdefault(rows, deque(maxlen=WINDOW)).append(seconds)
        self._num_since_fit += 1
        if self._num_since_fit >= min(REFIT_EVERY, sum(map(len, self._measured.values()))):
            self._hinges = self._fit()
            self._num_since_fit = 0

    def predict(self, rows: int) -> float:
        """Returns the expected seconds of a step with ``rows`` rows; only ratios mean anything before measurements."""
        return float(_hinge_values(np.array([rows], np.float64))[0] @ self._hinges)

    def _fit(self) -> npt.NDArray[np.float64]:
        sizes = sorted(self._measured)
        seconds = [median(self._measured[size]) for size in sizes]
        # The prior joins at the level that the measurements have, if there are any.
        level = median(value / _prior(size) for size, value in zip(sizes, seconds, strict=True)) if sizes else 1.0
        rows = np.array([*sizes, *PRIOR_SIZES], np.float64)
        values = np.array([*seconds, *(level * _prior(size) for size in PRIOR_SIZES)])
        weights = np.array([*(len(self._measured[size]) for size in sizes), *[PRIOR_WEIGHT] * len(PRIOR_SIZES)])
        weights = weights / values**2  # relative errors count
        hinges = _hinge_values(rows)
        gram, moment = (hinges.T * weights) @ hinges, (hinges.T * weights) @ values
        coefficients = np.zeros(hinges.shape[1])
        for _ in range(SWEEPS):
            for i in range(len(coefficients)):
                step = (moment[i] - gram[i] @ coefficients) / gram[i, i]
                coefficients[i] = max(0.0, coefficients[i] + step)
        return coefficients


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


def _prior(rows: int) -> float:
    return 1.0 + PRIOR_COST_PER_ROW * (rows - 1)


def _hinge_values(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """``[n, 1 + bends]``: a constant, and for each bend the rows beyond it."""
    columns = [np.ones_like(rows), *(np.maximum(0.0, rows - bend) for bend in BENDS)]
    return np.stack(columns, axis=1)
