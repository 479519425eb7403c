"""Training of a first drafter on recorded responses: passes over all of them, the best weights kept."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tlt_engine.drafter.model import DrafterModel
from tlt_engine.drafter_trainer.acceptance import chain_acceptance
from tlt_engine.drafter_trainer.sample import Sample
from tlt_engine.drafter_trainer.trainer import Trainer
from tlt_engine.drafter_trainer.unroll import Embed

MICRO_BATCH_TOKENS = 512
STEP_TOKENS = 512


@dataclass(frozen=True)
class Evaluation:
    """What the drafter was worth after so many tokens."""

    num_tokens: int
    acceptance_rates: list[float]

    @property
    def acceptance_length(self) -> float:
        """Mean tokens of a step with a greedy chain, bonus included."""
        return 1.0 + sum(self.acceptance_rates)


def epoch(samples: Sequence[Sample], seed: int) -> Iterator[list[list[Sample]]]:
    """Yields the micro-batches of each optimizer step of one pass over the samples, in an order the seed decides."""
    order = list(range(len(samples)))
    random.Random(seed).shuffle(order)  # noqa: S311 - not for secrets
    step: list[list[Sample]] = [[]]
    for index in order:
        sample = samples[index]
        if step[-1] and sum(map(len, step[-1])) + len(sample) > MICRO_BATCH_TOKENS:
            if sum(len(member) for batch in step for member in batch) >= STEP_TOKENS:
                yield step
                step = []
            step.append([])
        step[-1].append(sample)
    if step[-1]:
        yield step


def train(
    trainer: Trainer,
    samples: Sequence[Sample],
    held_out: Sequence[Sample],
    embed: Embed,
    *,
    num_epochs: int,
    depth: int,
    evaluations_per_epoch: int,
    report: Callable[[Evaluation, float, bool], None],
    state_file: Path | None = None,
) -> list[Evaluation]:
    """Passes over the samples several times and ends with the weights that were best on held-out text.

    With a state file the training goes on where it was stopped, at the last evaluation; the order of the samples does
    not change.

    Args:
        trainer: holds the drafter.
        samples: what to learn from.
        held_out: greedy responses of requests that are not among them.
        embed: the target's embedding.
        num_epochs: passes.
        depth: draft tokens of the chain that is evaluated.
        evaluations_per_epoch: how often.
        report: called with each evaluation, the mean loss since the last, and whether it is the best so far.
        state_file: written at each evaluation and read at the start, if it is there.

    Returns:
        All evaluations, the first before any training.
    """
    steps = [step for number in range(num_epochs) for step in epoch(samples, number)]
    trainer.decay_over(len(steps))
    every = max(1, len(steps) // max(1, num_epochs * evaluations_per_epoch))
    progress = _Progress.read(state_file, trainer)
    if progress is None:
        first = Evaluation(0, chain_acceptance(trainer.model, held_out, embed, depth))
        report(first, float("nan"), True)
        progress = _Progress([first], _snapshot(trainer.model))
    losses: list[float] = []
    for number in range(trainer.num_steps, len(steps)):
        losses.append(trainer.step(steps[number]).loss)
        if (number + 1) % every and number + 1 < len(steps):
            continue
        evaluation = Evaluation(trainer.num_tokens, chain_acceptance(trainer.model, held_out, embed, depth))
        is_best = evaluation.acceptance_length > max(past.acceptance_length for past in progress.evaluations)
        if is_best:
            progress.best_weights = _snapshot(trainer.model)
        progress.evaluations.append(evaluation)
        report(evaluation, sum(losses) / len(losses), is_best)  # first: who is stopped in between does it again
        progress.write(state_file, trainer)
        losses.clear()
    trainer.model.load_state_dict(progress.best_weights)
    return progress.evaluations


@dataclass
class _Progress:
    """How far a training came."""

    evaluations: list[Evaluation]
    best_weights: dict[str, Tensor]

    @classmethod
    def read(cls, file: Path | None, trainer: Trainer) -> "_Progress | None":
        if file is None or not file.exists():
            return None
        state = torch.load(file, weights_only=True)
        trainer.load_state_dict(state["trainer"])
        evaluations = [Evaluation(num_tokens, rates) for num_tokens, rates in state["evaluations"]]
        return cls(evaluations, state["best_weights"])

    def write(self, file: Path | None, trainer: Trainer) -> None:
        if file is None:
            return
        evaluations = [(past.num_tokens, past.acceptance_rates) for past in self.evaluations]
        state = {"trainer": trainer.state_dict(), "evaluations": evaluations, "best_weights": self.best_weights}
        partial = file.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(file)


def _snapshot(model: DrafterModel) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
