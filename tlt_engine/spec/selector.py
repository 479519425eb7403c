"""Chooses the strategy of a step by what strategies were worth at this size of batch, at a bounded price.

A change is made only where it is clearly better, so that nothing flaps; what is not the best is tried now and then, as
long as the time lost by that stays under a share of all time.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tlt_engine.spec.cost_model import size_class
from tlt_engine.spec.policies import Choice, IsPossible, Predict
from tlt_engine.spec.reward import ArmReward, Estimate
from tlt_engine.spec.strategy import NO_SPECULATION, DrafterName, SpecStrategy

PLAIN_PRIOR_STEPS = 200.0
"""Steps that the speed-up of plain steps, 1, is known from: their cost is what everything is measured against."""

PREDICTIONS_LAST = 16
"""Steps of a size of batch after which predictions are made anew."""

LEAST_SPEEDUP = 0.01
"""Predictions are divided by."""

SMOOTHING = 0.1
"""Weight of the newest step in the mean time of a step."""

MARGIN, CONFIDENCE = 0.01, 0.6
"""What a change needs: this much more speed, and so many deviations of the difference."""

EPSILON, HOPELESS_EPSILON = 0.15, 0.01
"""Shares of steps that try what may be the best, and what cannot be by what is known: the world may have changed. Both
only while the lost time allows it."""

LEAST_LOSS = 0.01
"""Share of an exploring step that counts as lost at least."""

CREDIT_SECONDS, CREDIT_STEPS = 0.02, 8
"""Lost time that is allowed before there is any time to take a share of: so many steps, each at most so long."""

OPTIMISM = 1.5
"""Deviations within which a strategy may be the best and is worth trying."""


class _Bucket:
    """What is known at one size of batch."""

    def __init__(self, strategies: Sequence[SpecStrategy]) -> None:
        self.arms = {strategy: ArmReward() for strategy in strategies}
        self.predicted: dict[SpecStrategy, float] = {}
        self.predicted_at = -PREDICTIONS_LAST
        self.step = 0
        self.mean_seconds = 0.0

    def follow(self, seconds: float) -> None:
        """Follows what a step takes here."""
        self.mean_seconds += SMOOTHING * (seconds - self.mean_seconds) if self.mean_seconds else seconds


class BanditSelector(ABC):
    """What the learning policies have in common: buckets, hysteresis and the budget of exploration."""

    cuts_to_cost = True

    def __init__(self, strategies: Sequence[SpecStrategy], *, max_exploration: float, seed: int) -> None:
        """Starts knowing nothing.

        Args:
            strategies: what there is to choose from; no speculation is always possible, listed or not.
            max_exploration: largest share of time that trying other strategies may lose.
            seed: of what is tried when; equal measurements and an equal seed give equal choices.
        """
        self._strategies = tuple(dict.fromkeys((NO_SPECULATION, *strategies)))
        self._max_exploration = max_exploration
        self._random = random.Random(seed)
        self._buckets: dict[int, _Bucket] = {}
        # What is measured is how far predictions are off: so a change of acceptance or of costs, which these follow,
        # is believed at once, and what one size of batch teaches about a strategy is the first guess at all others.
        self._errors = {strategy: ArmReward() for strategy in self._strategies}
        self._current = NO_SPECULATION
        self._latest_bucket: int | None = None
        self.num_switches = 0
        self.num_explored = 0
        self.lost_seconds = 0.0
        self.total_seconds = 0.0

    def select(self, batch_size: int, is_possible: IsPossible, predict: Predict) -> Choice:
        """Chooses for one step; see ``Selector.select``."""
        self._latest_bucket = size_class(batch_size)
        bucket = self._bucket_of(batch_size)
        bucket.step += 1
        if bucket.step - bucket.predicted_at >= PREDICTIONS_LAST:
            bucket.predicted_at = bucket.step
            bucket.predicted = {strategy: max(LEAST_SPEEDUP, predict(strategy)) for strategy in self._strategies}
        estimates = {
            strategy: self._estimate(bucket, strategy)
            for strategy in self._strategies
            if not strategy.drafts or is_possible(strategy)
        }
        best = self._settle(estimates)
        other = self._try_another(estimates, best) if len(estimates) > 1 else None
        if other is not None and self._can_afford(bucket, estimates, best, other):
            return Choice(other, is_exploration=True)
        return Choice(best)

    def record(self, batch_size: int, choice: Choice, plain_seconds: float, seconds: float) -> None:
        """Learns what a step gave; see ``Selector.record``."""
        if not (0.0 < plain_seconds < float("inf") and 0.0 < seconds < float("inf")):
            return
        bucket = self._bucket_of(batch_size)
        bucket.follow(seconds)
        predicted = bucket.predicted.get(choice.strategy, 1.0)
        bucket.arms[choice.strategy].record(plain_seconds, predicted * seconds, bucket.step)
        self._errors[choice.strategy].record(plain_seconds, predicted * seconds, 0)
        self.total_seconds += seconds
        if choice.is_exploration:
            self.num_explored += 1
            best = max(self._estimate(bucket, strategy).mean for strategy in self._strategies)
            share = 1.0 - self._estimate(bucket, choice.strategy).mean / best
            self.lost_seconds += max(LEAST_LOSS, share) * seconds

    def forget(self, drafters: Collection[DrafterName], num_kept: int) -> None:
        """Lets what these drafters do next count for more than what they did; see ``Selector.forget``."""
        for bucket in self._buckets.values():
            bucket.predicted_at = bucket.step - PREDICTIONS_LAST
            for strategy, arm in bucket.arms.items():
                if strategy.drafter in drafters:
                    arm.keep(num_kept)
        for strategy, error in self._errors.items():
            if strategy.drafter in drafters:
                error.keep(num_kept)

    def snapshot(self) -> dict[str, Any]:
        """Returns plain data for ``/tlt/status``."""
        bucket = self._buckets.get(self._latest_bucket) if self._latest_bucket is not None else None
        return {
            "current": self._current.name,
            "switches": self.num_switches,
            "explored_steps": self.num_explored,
            "exploration_share": self.lost_seconds / self.total_seconds if self.total_seconds else 0.0,
            "bucket": round(2 ** (self._latest_bucket / 2)) if self._latest_bucket is not None else None,
            "estimates": {
                strategy.name: dict(zip(("speedup", "deviation"), self._estimate(bucket, strategy), strict=True))
                | {"steps": len(arm)}
                for strategy, arm in bucket.arms.items()
            }
            if bucket is not None
            else {},
        }

    @abstractmethod
    def _try_another(self, estimates: Mapping[SpecStrategy, Estimate], best: SpecStrategy) -> SpecStrategy | None:
        """Returns what else to try in this step, or None."""

    def _bucket_of(self, batch_size: int) -> _Bucket:
        key = size_class(batch_size)
        if key not in self._buckets:
            self._buckets[key] = _Bucket(self._strategies)
        return self._buckets[key]

    def _estimate(self, bucket: _Bucket, strategy: SpecStrategy) -> Estimate:
        """Returns what a strategy is worth at a size of batch."""
        arm = bucket.arms[strategy]
        if not strategy.drafts:
            return arm.estimate(1.0, bucket.step, prior_steps=PLAIN_PRIOR_STEPS)
        predicted = bucket.predicted.get(strategy, 1.0)
        mean, deviation = arm.estimate(self._errors[strategy].estimate(1.0, 0).mean, bucket.step)
        return Estimate(predicted * mean, predicted * deviation)

    def _settle(self, estimates: Mapping[SpecStrategy, Estimate]) -> SpecStrategy:
        """Stays with the current strategy unless another one is clearly better here."""
        rival = max(estimates, key=lambda strategy: estimates[strategy].mean)
        current = estimates.get(self._current)
        if current is None:
            self._switch(rival)
        else:
            gap = estimates[rival].mean - current.mean
            doubt = (estimates[rival].deviation ** 2 + current.deviation**2) ** 0.5
            if gap > MARGIN * current.mean and gap > CONFIDENCE * doubt:
                self._switch(rival)
        return self._current

    def _switch(self, strategy: SpecStrategy) -> None:
        self.num_switches += strategy != self._current
        self._current = strategy

    def _can_afford(
        self, bucket: _Bucket, estimates: Mapping[SpecStrategy, Estimate], best: SpecStrategy, other: SpecStrategy
    ) -> bool:
        seconds = bucket.mean_seconds or CREDIT_SECONDS
        # For the tokens of one step of the best: a strategy that is ten times as slow takes nine steps more.
        share = max(LEAST_LOSS, estimates[best].mean / max(LEAST_SPEEDUP, estimates[other].mean) - 1.0)
        credit = CREDIT_STEPS * min(seconds, CREDIT_SECONDS) if self._max_exploration else 0.0
        return self.lost_seconds + share * seconds <= self._max_exploration * self.total_seconds + credit


class BegSelector(BanditSelector):
    """Bucketed epsilon-greedy: mostly the best, now and then one of those that may be better.

    Source: TLT (arXiv:2511.16665), BEG-MAB; there all strategies of a bucket are tried alike and for ever.
    """

    def _try_another(self, estimates: Mapping[SpecStrategy, Estimate], best: SpecStrategy) -> SpecStrategy | None:
        draw = self._random.random()
        if draw >= EPSILON + HOPELESS_EPSILON:
            return None
        bar = estimates[best].mean
        others = [strategy for strategy in estimates if strategy != best]
        if draw >= EPSILON:
            return self._random.choice(others)
        hopeful = [
            strategy
            for strategy in others
            if estimates[strategy].mean + OPTIMISM * estimates[strategy].deviation >= bar
        ]
        return self._random.choice(hopeful) if hopeful else None


class ThompsonSelector(BanditSelector):
    """Draws a speed-up of each strategy from what is known of it and does what drew the largest.

    Source: Thompson (1933); the budget of exploration is ours.
    """

    def _try_another(self, estimates: Mapping[SpecStrategy, Estimate], best: SpecStrategy) -> SpecStrategy | None:
        drawn = {
            strategy: self._random.gauss(estimate.mean, estimate.deviation) for strategy, estimate in estimates.items()
        }
        winner = max(drawn, key=lambda strategy: drawn[strategy])
        return None if winner == best else winner
