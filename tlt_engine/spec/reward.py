"""What a strategy was worth of late, in time: what its tokens would have taken otherwise, over what they took."""

import math
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

WINDOW = 1024
"""Latest steps that count. With one request a step's tokens deviate by half of their mean, so a few percent show only
over hundreds of steps; a change is noticed earlier, by the comparison below."""

STALE_STEPS = 1000
"""Steps without this strategy after which what was measured counts half."""

PRIOR_STEPS, PRIOR_DEVIATION = 8.0, 0.5
"""Steps that a prior is worth, and how much one step's ratio deviates from the mean before any was seen."""

LARGEST_SURPRISE, KNOWN_STEPS = 4.0, 4
"""Multiple of the mean seconds that one step may count for once so many are known: what the machine interrupted says
nothing."""

RECENT, CHANGED_BEYOND = 32, 3.5
"""Steps that are compared with those before, and the deviations beyond which those before are dropped."""


class Estimate(NamedTuple):
    """A ratio of times and how far it may be off."""

    mean: float
    deviation: float


class ArmReward:
    """The reward of one strategy at one size of batch.

    The paper's reward is tokens a second, ``(accepted + 1) * batch / seconds``, and its median over a window. Here it
    is divided by the rate that was expected with the same contexts, so that steps compare although contexts grow, and
    rates are averaged as they should be, by time; single slow steps are cut instead.

    Source: TLT (arXiv:2511.16665), BEG-MAB.
    """

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float]] = deque()
        self._sums = [0.0, 0.0, 0.0, 0.0, 0.0]
        self._last_step = 0
        self._num_recorded = 0

    def __len__(self) -> int:
        return len(self._steps)

    def record(self, worth: float, seconds: float, step: int) -> None:
        """Adds one step.

        Args:
            worth: seconds that plain steps would have taken for the same tokens.
            seconds: what it took, drafting included, times the speed-up that was predicted.
            step: number of the step among those of this size of batch.
        """
        if len(self._steps) >= KNOWN_STEPS:
            seconds = min(seconds, LARGEST_SURPRISE * self._sums[1] / len(self._steps))
        self._steps.append((worth, seconds))
        self._add(worth, seconds, 1.0)
        if len(self._steps) > WINDOW:
            self._drop()
        self._last_step = step
        self._num_recorded += 1
        if self._num_recorded % (RECENT // 2) == 0 and self._has_changed():
            self.keep(RECENT)

    def estimate(self, prior: float, step: int, *, prior_steps: float = PRIOR_STEPS) -> Estimate:
        """Returns the ratio as far as it is known.

        Args:
            prior: what it is taken for before anything is seen.
            step: number of the step that it is wanted for.
            prior_steps: steps that the prior is worth.
        """
        if not self._steps:
            return Estimate(prior, PRIOR_DEVIATION / math.sqrt(prior_steps))
        freshness = 2.0 ** (-(step - self._last_step) / STALE_STEPS)
        num_steps = len(self._steps)
        mean_seconds = self._sums[1] / num_steps
        weight = freshness * num_steps
        gained = prior_steps * prior * mean_seconds + freshness * self._sums[0]
        mean = gained / ((prior_steps + weight) * mean_seconds)
        variance = self._residuals(self._sums, self._sums[0] / self._sums[1]) / mean_seconds**2
        per_step = (PRIOR_STEPS * PRIOR_DEVIATION**2 + variance) / (PRIOR_STEPS + num_steps)
        return Estimate(mean, math.sqrt(per_step / (prior_steps + weight)))

    def keep(self, num_steps: int) -> None:
        """Forgets all but the latest steps."""
        while len(self._steps) > num_steps:
            self._drop()

    def _has_changed(self) -> bool:
        if len(self._steps) < 2 * RECENT:
            return False
        recent = _sums(list(self._steps)[-RECENT:])
        older = [total - part for total, part in zip(self._sums, recent, strict=True)]
        num_older = len(self._steps) - RECENT
        rates = recent[0] / recent[1], older[0] / older[1]
        of_recent = self._residuals(recent, rates[0]) / recent[1] ** 2
        of_older = self._residuals(older, rates[1]) / older[1] ** 2
        floor = (0.02 * rates[1]) ** 2 / num_older  # equal steps have no variance
        return bool(abs(rates[0] - rates[1]) > CHANGED_BEYOND * math.sqrt(of_recent + of_older + floor))

    def _drop(self) -> None:
        self._add(*self._steps.popleft(), -1.0)

    def _add(self, worth: float, seconds: float, sign: float) -> None:
        for place, term in enumerate(_terms(worth, seconds)):
            self._sums[place] += sign * term

    @staticmethod
    def _residuals(sums: list[float], rate: float) -> float:
        """Sum of squares of ``worth - rate * seconds``."""
        return max(0.0, sums[2] - 2 * rate * sums[3] + rate**2 * sums[4])


def _terms(worth: float, seconds: float) -> tuple[float, float, float, float, float]:
    return worth, seconds, worth**2, worth * seconds, seconds**2


def _sums(steps: Iterable[tuple[float, float]]) -> list[float]:
    return [sum(column) for column in zip(*(_terms(*step) for step in steps), strict=True)]
