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


class Candidate(NamedTuple):
    """What was drafted for one request."""

    tree: DraftTree
    context_len: int
    """Its committed tokens."""
    discount: float = 1.0
    """Share of their estimates that its nodes are thought to be worth."""


class ChosenRows(NamedTuple):
    """Draft trees cut to what pays."""

    trees: list[DraftTree]
    """One a candidate, in order, each closed under taking parents."""
    expected_accepted: list[float]
    """For each, the sum of the estimates of its chosen nodes, before any discount."""


def choose_draft_rows(
    candidates: Sequence[Candidate],
    step_cost: StepCost,
    *,
    num_reqs: int,
    row_context: int,
    max_rows: int | None,
    other_seconds: float = 0.0,
) -> ChosenRows:
    """Cuts the candidate trees to the nodes that raise emitted tokens per second of the whole step.

    Nodes of all requests compete in one order, the likeliest first, so rows go where the expected gain is largest.
    Nodes of a drafter without estimates count as certain.

    Args:
        candidates: the requests that may draft.
        step_cost: predicts the seconds of the target.
        num_reqs: requests of the step, those without candidates included; each needs one row.
        row_context: committed tokens of all requests of the step.
        max_rows: most rows of the step; None for no cap.
        other_seconds: of the step, whatever its rows.
    """
    ranked = _ranked(candidates)
    best_count, expected = 0, float(num_reqs)
    best_rate = num_reqs / (other_seconds + step_cost.predict(num_reqs, row_context))
    for count, (loss, index, _) in enumerate(ranked[: _limit(len(ranked), num_reqs, max_rows)], start=1):
        expected -= loss
        row_context += candidates[index].context_len
        rate = expected / (other_seconds + step_cost.predict(num_reqs + count, row_context))
        if rate > best_rate:
            best_count, best_rate = count, rate
    return _cut(candidates, ranked[:best_count])


def likeliest_rows(candidates: Sequence[Candidate], *, num_reqs: int, max_rows: int | None) -> ChosenRows:
    """Keeps whole trees, whatever they cost; a cap cuts off the least likely nodes of all."""
    ranked = _ranked(candidates)
    return _cut(candidates, ranked[: _limit(len(ranked), num_reqs, max_rows)])


def _ranked(candidates: Sequence[Candidate]) -> list[tuple[float, int, int]]:
    """Returns all nodes, the likeliest first and parents before children: minus the worth, candidate, node."""
    ranked: list[tuple[float, int, int]] = []
    for index, (tree, _, discount) in enumerate(candidates):
        reach: list[float] = []
        for node, parent in enumerate(tree.parents):
            prob = tree.probs[node] if tree.probs else 1.0
            reach.append(prob if parent == ROOT else min(prob, reach[parent]))
            ranked.append((-discount * reach[node], index, node))
    ranked.sort()
    return ranked


def _limit(num_nodes: int, num_reqs: int, max_rows: int | None) -> int:
    return num_nodes if max_rows is None else max(0, min(num_nodes, max_rows - num_reqs))


def _cut(candidates: Sequence[Candidate], ranked: Sequence[tuple[float, int, int]]) -> ChosenRows:
    chosen: list[list[int]] = [[] for _ in candidates]
    expected = [0.0] * len(candidates)
    for loss, index, node in ranked:
        chosen[index].append(node)
        expected[index] -= loss / candidates[index].discount
    trees = [candidate.tree.select(sorted(nodes)) for candidate, nodes in zip(candidates, chosen, strict=True)]
    return ChosenRows(trees, expected)
