"""Cost of one target step against the rows it verifies, and how many draft rows that cost justifies."""

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from tlt_engine.spec.tree import ROOT, DraftTree

WINDOW = 32
"""Latest measurements a median is taken over: enough to ignore a busy machine, few enough to follow it."""

PRIOR_PROFILE = {1: 1.0, 33: 2.0}
"""Relative cost before anything is known: a step reads the weights once whatever its rows."""

PROFILE_WEIGHT = 8.0
"""Measurements of one row count that the profile is worth."""

CONTEXT_UNIT = 10_000
"""Tokens attended to, over all rows, that the second cost coefficient counts as one."""

MEASUREMENT_NOISE, START_DEVIATIONS, DRIFT = 0.05, (0.2, 0.5), (3e-3, 1e-3)
"""Relative to a plain step: deviation of one measurement, of both coefficients at the start, and their drift a step."""

LARGEST_SURPRISE = 3.0
"""Deviations that one measurement may count for; a step that the machine interrupted says nothing."""


class StepCost:
    """Predicts the seconds of a step from its rows and from the contexts that these attend to.

    The cost of rows has steps and dips (matrix kernels work on blocks of rows: SmolLM2-135M on one core takes 46 ms for
    one row, 56 for two, 41 for three to six and 53 for seven), so it is taken from a profile, row count by row count.
    Serving finds the two coefficients, of the profile and of attention, with a Kalman filter, because for long times
    only their sum can be seen. A median over the latest steps follows the machine's speed faster, and row counts that
    keep missing the prediction get a correction of their own.
    """

    def __init__(self) -> None:
        self.is_measured = False
        self._ratios: deque[float] = deque(maxlen=WINDOW)
        self._corrections: dict[int, deque[float]] = {}
        self._relative: list[float] = []
        self.set_profile(PRIOR_PROFILE)

    def set_profile(self, profile: Mapping[int, float]) -> None:
        """Replaces the shape of the curve.

        Args:
            profile: cost by rows, in any unit; between its sizes the cost is taken as linear, beyond them its last
                two go on.
        """
        self._sizes = sorted(profile)
        self._costs = [profile[size] / profile[self._sizes[0]] for size in self._sizes]
        self._coefficients = np.array([1.0, 0.0])
        self._level = 1.0
        self.is_measured = False
        self._ratios.clear()
        self._corrections.clear()
        self._relative.clear()

    def record(self, rows: int, row_context: int, seconds: float) -> None:
        """Adds one measured step that prefilled nothing.

        Args:
            rows: verified rows.
            row_context: committed tokens that the rows attend to, summed over rows.
            seconds: its time.
        """
        signal = np.array([self._profile(rows), row_context / CONTEXT_UNIT])
        if not self.is_measured:
            self._coefficients = np.array([seconds / signal[0], 0.0])
            self._covariance = np.diag(np.square(START_DEVIATIONS) * self._coefficients[0] ** 2)
            self.is_measured = True
        plain = self._coefficients[0]
        predicted = self._coefficients @ signal
        self._covariance += np.diag(np.square(DRIFT) * plain**2)
        deviation = np.sqrt(signal @ self._covariance @ signal + (MEASUREMENT_NOISE * predicted) ** 2)
        surprise = np.clip(seconds - predicted, -LARGEST_SURPRISE * deviation, LARGEST_SURPRISE * deviation)
        gain = self._covariance @ signal / deviation**2
        self._coefficients = np.maximum(self._coefficients + gain * surprise, [0.1 * plain, 0.0])
        self._covariance -= np.outer(gain, signal @ self._covariance)
        self._ratios.append(seconds / predicted)
        self._level = median(self._ratios)
        # Against all sizes of late, so that a machine turned slow is nobody's correction.
        self._corrections.setdefault(rows, deque(maxlen=WINDOW)).append(self._ratios[-1] / self._level)
        if rows <= len(self._relative):
            self._relative[rows - 1] = self._corrected(rows)

    def predict(self, rows: int, row_context: int = 0) -> float:
        """Returns the expected seconds of a step; only ratios mean anything before measurements.

        Args:
            rows: verified rows.
            row_context: committed tokens that the rows attend to, summed over rows.
        """
        for unknown in range(len(self._relative) + 1, rows + 1):
            self._relative.append(self._corrected(unknown))
        per_profile, per_context = self._coefficients.tolist()
        return float(self._level * (per_profile * self._relative[rows - 1] + per_context * row_context / CONTEXT_UNIT))

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
    expected_accepted: float
    """Sum of the estimates of the chosen nodes, before any discount."""
    saved_seconds: float
    """Expected time that plain steps would have taken for the same tokens, minus the time of this step."""


def choose_draft_rows(
    trees: Sequence[DraftTree],
    step_cost: StepCost,
    *,
    context_lens: Sequence[int],
    num_reqs: int,
    row_context: int,
    max_rows: int | None,
    discount: float = 1.0,
) -> ChosenRows:
    """Cuts the candidate trees to the nodes that raise emitted tokens per second of the whole step.

    Nodes of all requests compete in one order, the likeliest first, so rows go where the expected gain is largest.
    Nodes of a drafter without estimates count as certain.

    Args:
        trees: candidate tree of each request that may draft.
        step_cost: predicts the seconds of the step.
        context_lens: committed tokens of each of these requests.
        num_reqs: requests of the step, those without candidates included; each needs one row.
        row_context: committed tokens of all requests of the step.
        max_rows: most rows of the step; None for no cap.
        discount: share of their estimates that chosen nodes were worth of late.

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

    plain_seconds = step_cost.predict(num_reqs, row_context)
    best_count, best_rate, expected = 0, num_reqs / plain_seconds, float(num_reqs)
    expected_accepted = saved_seconds = 0.0
    for count, (loss, index, _) in enumerate(ranked[:limit], start=1):
        expected -= discount * loss
        row_context += context_lens[index]
        seconds = step_cost.predict(num_reqs + count, row_context)
        if expected / seconds > best_rate:
            best_count, best_rate = count, expected / seconds
            expected_accepted = (expected - num_reqs) / discount
            saved_seconds = expected / num_reqs * plain_seconds - seconds

    chosen: list[list[int]] = [[] for _ in trees]
    for _, index, node in ranked[:best_count]:
        chosen[index].append(node)
    cut = [tree.select(sorted(nodes)) for tree, nodes in zip(trees, chosen, strict=True)]
    return ChosenRows(cut, expected_accepted, saved_seconds)
