"""What a strategy should gain before it was tried: acceptance by depth against the seconds of drafting and verifying.

Its predictions are priors: the Selector's measurements overrule them.
"""

import math
from collections.abc import Mapping, Sequence

from tlt_engine.spec.step_cost import StepCost
from tlt_engine.spec.strategy import WITH_NETWORK, DrafterName, SpecStrategy

FIRST_RATES: Mapping[DrafterName, tuple[float, ...]] = {
    "ngram": (0.35, 0.5, 0.6),
    "learned": (0.5, 0.5, 0.5),
    "both": (0.55, 0.55, 0.55),
    "own": (0.5, 0.6, 0.6),
}
"""Share of drafts whose token at each depth is accepted if the one before was, before anything is seen. Careful: a
strategy that is thought too good costs steps, one that is thought too bad is found by exploration."""

RATE_PRIOR, RATE_MEMORY = 8.0, 400.0
"""Observations that a first rate is worth, and after how many of one depth the older ones fade."""

LOOKUP_SECONDS = (3e-4, 3e-4)
"""Of a look-up before any was timed: a step's and a request's."""

SMOOTHING = 0.1
"""Weight of the newest measurement in a running mean."""

LARGEST_SURPRISE = 4.0
"""Multiple of the mean that one measurement may count for."""


def size_class(num_reqs: int) -> int:
    """Returns the class of a batch size; up to 4 each has its own, beyond them sizes within a factor of 1.4 share."""
    return round(2 * math.log2(max(1, num_reqs)))


class AcceptanceByDepth:
    """How often a draft goes on to the next depth, by drafter, from verified trees."""

    def __init__(self) -> None:
        self._first = {drafter: list(rates) for drafter, rates in FIRST_RATES.items()}
        self._counts: dict[tuple[str, int], list[float]] = {}

    def expect(self, drafter: DrafterName, rates: Sequence[float]) -> None:
        """Takes over what a drafter was worth where it was trained, as the first guess.

        Args:
            drafter: whose.
            rates: at each depth, the share of drafts accepted there if they were accepted before.
        """
        if rates:
            self._first[drafter] = list(rates)

    def record(self, drafter: DrafterName, num_accepted: int, *, goes_deeper: bool) -> None:
        """Adds one verified tree.

        Args:
            drafter: whose.
            num_accepted: its accepted draft tokens, bonus excluded.
            goes_deeper: whether the last accepted node had children, which were all rejected.
        """
        for depth in range(num_accepted):
            self._count(drafter, depth, 1.0)
        if goes_deeper:
            self._count(drafter, num_accepted, 0.0)

    def rate(self, drafter: DrafterName, depth: int) -> float:
        """Returns the share of drafts that are accepted at a depth, from 0 on, if they were accepted before."""
        first = self._first[drafter]
        prior = first[min(depth, len(first) - 1)]
        seen, hit = self._counts.get((drafter, depth), (0.0, 0.0))
        return (hit + RATE_PRIOR * prior) / (seen + RATE_PRIOR)

    def forget(self, drafters: Sequence[DrafterName]) -> None:
        """Lets what comes weigh more than what was seen: there are new weights."""
        for (drafter, _), counts in self._counts.items():
            if drafter in drafters and counts[0] > RATE_PRIOR:
                counts[1] *= RATE_PRIOR / counts[0]
                counts[0] = RATE_PRIOR

    def snapshot(self) -> dict[str, list[float]]:
        """Returns the rates by drafter as far as they were measured."""
        depths: dict[str, int] = {}
        for drafter, depth in self._counts:
            depths[drafter] = max(depths.get(drafter, 0), depth + 1)
        return {
            drafter: [self.rate(drafter, depth) for depth in range(count)]  # type: ignore[arg-type]
            for drafter, count in sorted(depths.items())
        }

    def _count(self, drafter: str, depth: int, hit: float) -> None:
        counts = self._counts.setdefault((drafter, depth), [0.0, 0.0])
        if counts[0] >= RATE_MEMORY:
            counts[0] /= 2
            counts[1] /= 2
        counts[0] += 1
        counts[1] += hit


class DraftCost:
    """Seconds that drafting takes by strategy and batch size."""

    def __init__(self) -> None:
        self._means: dict[SpecStrategy, dict[int, tuple[float, int]]] = {}
        self._passes: dict[int, tuple[float, float]] = {}

    def set_passes(self, seconds: Mapping[int, tuple[float, float]]) -> None:
        """Takes over what the network was timed at.

        Args:
            seconds: for a number of requests, the first pass and each further one.
        """
        self._passes = dict(seconds)

    def record(self, strategy: SpecStrategy, num_reqs: int, seconds: float) -> None:
        """Adds one measurement."""
        means = self._means.setdefault(strategy, {})
        mean, count = means.get(size_class(num_reqs), (seconds, 0))
        weight = max(SMOOTHING, 1.0 / (count + 1))
        means[size_class(num_reqs)] = (mean + weight * (min(seconds, LARGEST_SURPRISE * mean) - mean), count + 1)

    def predict(self, strategy: SpecStrategy, num_reqs: int) -> float:
        """Returns the expected seconds: measured at this batch size, or at the nearest one, or else estimated."""
        if not strategy.drafts:
            return 0.0
        means = self._means.get(strategy)
        if means:
            own = size_class(num_reqs)
            nearest = min(means, key=lambda known: (abs(known - own), known))
            # Half of the cost is each step's, half each request's, as far as it goes.
            return means[nearest][0] * (0.5 + 0.5 * 2 ** ((own - nearest) / 2))
        seconds = 0.0
        if strategy.drafter in ("ngram", "both"):
            seconds += LOOKUP_SECONDS[0] + LOOKUP_SECONDS[1] * num_reqs
        if strategy.drafter in WITH_NETWORK and self._passes:
            known = min(self._passes, key=lambda size: (abs(math.log2(size / num_reqs)), size))
            first, further = self._passes[known]
            scale = max(1.0, num_reqs / known)
            seconds += scale * (first + (strategy.draft_depth - 1) * further)
        return seconds


class CostModel:
    """Predicts by how much a strategy speeds decoding up at a batch size."""

    def __init__(self, step_cost: StepCost) -> None:
        self.step_cost = step_cost
        self.acceptance = AcceptanceByDepth()
        self.draft_cost = DraftCost()
        self._other_seconds = 0.0

    @property
    def other_seconds(self) -> float:
        """Seconds of a step that are neither the target's nor drafting: the scheduler's, the front end's."""
        return self._other_seconds

    def record_other(self, seconds: float) -> None:
        """Adds what one step took beside the target and drafting."""
        if self._other_seconds:
            seconds = min(max(0.0, seconds), LARGEST_SURPRISE * self._other_seconds)
            self._other_seconds += SMOOTHING * (seconds - self._other_seconds)
        else:
            self._other_seconds = max(0.0, seconds)

    def plain_seconds(self, num_reqs: int, row_context: int) -> float:
        """Returns what a step without drafts is expected to take, from token to token."""
        return self.step_cost.predict(num_reqs, row_context) + self._known(self._other_seconds)

    def speedup(self, strategy: SpecStrategy, num_reqs: int, row_context: int = 0) -> float:
        """Returns tokens a second over those of plain steps.

        Args:
            strategy: what would be done; rows are taken to be as many as pay.
            num_reqs: requests of the step.
            row_context: their committed tokens, summed.
        """
        if not strategy.drafts:
            return 1.0
        plain = self.plain_seconds(num_reqs, row_context)
        fixed = self._known(self._other_seconds + self.draft_cost.predict(strategy, num_reqs))
        expected = reach = 1.0
        best = plain / (fixed + self.step_cost.predict(num_reqs, row_context))
        most = strategy.draft_depth if strategy.drafter == "learned" else strategy.verify_width - 1
        for depth in range(min(most, strategy.verify_width - 1)):
            reach *= self.acceptance.rate(strategy.drafter, depth)
            expected += reach
            seconds = fixed + self.step_cost.predict(num_reqs * (depth + 2), row_context * (depth + 2))
            rate = expected * plain / seconds
            if rate <= best and depth > 4:
                break
            best = max(best, rate)
        return best

    def _known(self, seconds: float) -> float:
        """Seconds compare with nothing before a step was measured: then the cost of rows has no unit."""
        return seconds if self.step_cost.is_measured else 0.0
