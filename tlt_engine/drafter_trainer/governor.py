"""How much training decoding bears: steps with and without it are compared, and it rests as long as that asks."""

from collections import deque
from statistics import median

WINDOW = 128
"""Steps of each sort that are remembered."""

FEWEST_STEPS = 8
"""Nothing is said before so many steps were seen with training and without."""

PROBE_SHARE = 0.08
"""Share of the time that training rests however little it is felt, so that there are steps to compare with."""

LEAST_DUTY = 0.02


class Governor:
    """Keeps the mean slow-down of decode steps within a bound.

    Steps differ in rows and context, so each is taken relative to what such a step usually costs. Where training is
    felt by more than the bound, it runs a part of the time.
    """

    def __init__(self, max_slowdown: float) -> None:
        """Starts without knowing anything, with the least rest.

        Args:
            max_slowdown: mean slow-down that is allowed, as a share of a step.
        """
        self.max_slowdown = max_slowdown
        self._steps: tuple[deque[float], deque[float]] = (deque(maxlen=WINDOW), deque(maxlen=WINDOW))

    def record(self, relative_seconds: float, was_training: bool) -> None:
        """Notes a decode step.

        Args:
            relative_seconds: it took, divided by what such a step was expected to take.
            was_training: whether a piece of training ran while it did.
        """
        self._steps[was_training].append(relative_seconds)

    @property
    def slowdown(self) -> float:
        """By how much a step is longer while training runs, as a share; 0 as long as too few were seen."""
        without, with_training = map(tuple, self._steps)  # the step path adds to them meanwhile
        if min(len(without), len(with_training)) < FEWEST_STEPS:
            return 0.0
        return median(with_training) / median(without) - 1.0

    @property
    def duty(self) -> float:
        """Share of the time that training may take while requests decode."""
        most = 1.0 - PROBE_SHARE
        slowdown = self.slowdown
        return most if slowdown * most <= self.max_slowdown else max(LEAST_DUTY, self.max_slowdown / slowdown)

    def rest_after(self, seconds: float) -> float:
        """Returns the seconds to rest after so many of training while requests decode."""
        return seconds * (1.0 / self.duty - 1.0)
