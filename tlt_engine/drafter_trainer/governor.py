"""How much training decoding bears: steps with and without it are compared, and it rests as long as that asks."""

from collections import deque
from statistics import median

WINDOW = 48
"""Steps of a kind that are remembered."""

FEWEST_STEPS = 8
"""A kind of step is judged once so many were seen with training and without."""

PROBE_SHARE = 0.08
"""Share of the time that training rests however little it is felt, so that there are steps to compare with."""

LEAST_DUTY = 0.02

CONTEXT_BUCKET = 512

KINDS = 64
"""Kinds of steps that are remembered; the oldest goes."""


class Governor:
    """Keeps the mean slow-down of decode steps within a bound.

    Steps are compared with steps of as many rows and about as much context only. Where training is felt by more than
    the bound, it runs a part of the time.
    """

    def __init__(self, max_slowdown: float) -> None:
        """Starts without knowing anything, with the least rest.

        Args:
            max_slowdown: mean slow-down that is allowed, as a share of a step.
        """
        self.max_slowdown = max_slowdown
        self._steps: dict[tuple[int, int], tuple[deque[float], deque[float]]] = {}

    def record(self, num_rows: int, row_context: int, seconds: float, was_training: bool) -> None:
        """Notes a decode step.

        Args:
            num_rows: rows the target computed.
            row_context: committed tokens of all requests.
            seconds: it took.
            was_training: whether a piece of training ran while it did.
        """
        key = (num_rows, row_context // CONTEXT_BUCKET)
        if key not in self._steps:
            if len(self._steps) >= KINDS:
                del self._steps[next(iter(self._steps))]
            self._steps[key] = (deque(maxlen=WINDOW), deque(maxlen=WINDOW))
        self._steps[key][was_training].append(seconds)

    @property
    def slowdown(self) -> float:
        """By how much a step is longer while training runs, as a share; 0 as long as too few were seen."""
        total, weights = 0.0, 0
        for without, with_training in list(self._steps.values()):  # the step path adds kinds meanwhile
            weight = min(len(without), len(with_training))
            if weight >= FEWEST_STEPS:
                total += weight * (median(with_training) / median(without) - 1.0)
                weights += weight
        return total / weights if weights else 0.0

    @property
    def duty(self) -> float:
        """Share of the time that training may take while requests decode."""
        most = 1.0 - PROBE_SHARE
        slowdown = self.slowdown
        return most if slowdown * most <= self.max_slowdown else max(LEAST_DUTY, self.max_slowdown / slowdown)

    def rest_after(self, seconds: float) -> float:
        """Returns the seconds to rest after so many of training while requests decode."""
        return seconds * (1.0 / self.duty - 1.0)
