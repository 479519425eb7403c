"""An engine whose steps cost what a table says: what a policy does on it, and what it loses by that."""

import math
import random
from dataclasses import dataclass, field

from tlt_engine.spec.strategy import NO_SPECULATION, SpecStrategy

BATCH_SIZES = (1, 2, 4, 8, 16, 32)


def tree(verify_width: int) -> SpecStrategy:
    return SpecStrategy(drafter="both", draft_depth=10, top_k=8, verify_width=verify_width)


NGRAM = SpecStrategy(drafter="ngram", verify_width=16)
SHALLOW = SpecStrategy(drafter="both", draft_depth=1, top_k=4, verify_width=16)


@dataclass(frozen=True)
class Machine:
    """Speed-up over plain decoding by strategy and batch size, and the seconds of a plain step."""

    speedups: dict[SpecStrategy, tuple[float, ...]]
    """By ``BATCH_SIZES``; between two sizes it goes evenly with the logarithm."""
    plain_seconds: tuple[float, ...]
    acceptance: float = 5.0
    """Mean tokens a request emits in a step with drafts, bonus included."""

    @property
    def strategies(self) -> tuple[SpecStrategy, ...]:
        return tuple(self.speedups)

    def speedup(self, strategy: SpecStrategy, batch_size: int) -> float:
        return 1.0 if strategy == NO_SPECULATION else at(self.speedups[strategy], batch_size)

    def step_seconds(self, batch_size: int) -> float:
        return at(self.plain_seconds, batch_size)

    def best(self, batch_size: int) -> float:
        return max(1.0, *(self.speedup(strategy, batch_size) for strategy in self.strategies))


def at(values: tuple[float, ...], batch_size: int) -> float:
    """Returns a value between those of ``BATCH_SIZES``."""
    place = min(math.log2(batch_size), len(values) - 1)
    low = min(int(place), len(values) - 2)
    return values[low] + (place - low) * (values[low + 1] - values[low])


H100 = Machine(
    # Qwen2.5-32B on four GPUs, depth 10, table 4 of arXiv:2511.16665.
    {
        tree(16): (3.22, 3.08, 3.01, 2.73, 2.67, 2.48),
        tree(32): (3.46, 3.28, 3.09, 2.63, 2.52, 2.23),
        tree(48): (3.56, 3.39, 3.13, 2.51, 2.24, 1.90),
        tree(64): (3.62, 3.38, 2.98, 2.27, 1.91, 1.70),
    },
    (0.012,) * 6,
)
L40 = Machine(
    # A card with fewer operations to a byte, where wide trees stop paying at eight requests and any at thirty-two.
    {
        tree(16): (2.6, 2.3, 1.9, 1.4, 1.05, 0.8),
        tree(32): (2.9, 2.4, 1.7, 1.1, 0.75, 0.5),
        NGRAM: (1.5, 1.45, 1.35, 1.25, 1.1, 0.97),
    },
    (0.025, 0.025, 0.026, 0.028, 0.031, 0.040),
)
CPU = Machine(
    # SmolLM2-135M in float32 on two cores, as decode_learned_*.json and decode_*.json have it.
    {
        tree(16): (2.43, 2.03, 1.61, 1.10, 0.90, 0.80),
        SHALLOW: (1.9, 1.75, 1.45, 1.15, 0.95, 0.88),
        NGRAM: (2.1, 1.9, 1.33, 1.12, 0.99, 0.93),
    },
    (0.035, 0.041, 0.042, 0.050, 0.068, 0.12),
    acceptance=2.4,
)
MACHINES = {"h100": H100, "l40": L40, "cpu": CPU}


@dataclass
class Run:
    """What a policy did."""

    lost: float = 0.0
    """Seconds that the best strategy of each step would have saved."""
    seconds: float = 0.0
    chosen: list[SpecStrategy] = field(default_factory=list)
    switches: int = 0
    """Changes of what is done when nothing is tried out."""

    @property
    def regret(self) -> float:
        """Share of all time that was lost."""
        return self.lost / self.seconds


def simulate(selector, machine_of, batch_sizes, *, seed=0, prediction_error=0.25, is_possible=lambda _: True) -> Run:
    """Lets a policy choose for one step after the other.

    Args:
        selector: the policy.
        machine_of: returns the machine of a step, by its number.
        batch_sizes: of each step.
        seed: of the noise.
        prediction_error: by how much predictions of speed-ups are off, up or down, for good.
        is_possible: whether a strategy can be taken.
    """
    rng, run = random.Random(seed), Run()
    errors: dict[SpecStrategy, float] = {}
    before = None
    for step, batch_size in enumerate(batch_sizes):
        machine: Machine = machine_of(step)

        def predict(strategy, machine=machine, batch_size=batch_size):
            if strategy == NO_SPECULATION:
                return 1.0
            error = errors.setdefault(strategy, rng.uniform(1 - prediction_error, 1 + prediction_error))
            return machine.speedup(strategy, batch_size) * error

        choice = selector.select(batch_size, is_possible, predict)
        speedup = machine.speedup(choice.strategy, batch_size)
        plain = machine.step_seconds(batch_size)
        mean = 1.0 if choice.strategy == NO_SPECULATION else machine.acceptance
        seconds = plain * mean / speedup * max(0.5, rng.gauss(1.0, 0.05)) * (8.0 if rng.random() < 0.002 else 1.0)
        emitted = sum(draw_length(rng, mean) for _ in range(batch_size))
        selector.record(batch_size, choice, emitted / batch_size * plain, seconds)
        run.lost += seconds * (1 - speedup / machine.best(batch_size))
        run.seconds += seconds
        run.chosen.append(choice.strategy)
        if not choice.is_exploration:
            run.switches += before is not None and choice.strategy != before
            before = choice.strategy
    return run


def draw_length(rng, mean):
    """Draws the tokens of one request: geometric, as when each draft token is accepted alike."""
    length = 1
    while length < 16 and rng.random() < 1 - 1 / mean:
        length += 1
    return length


def long_tail(num_steps, first=32):
    """Batch sizes of a rollout: responses end one after the other, the last ones go on for long."""
    return [max(1, round(first * (1 - step / num_steps) ** 3)) for step in range(num_steps)]
