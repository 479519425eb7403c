"""One optimizer step at a time; when and on what is for others to say."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import Tensor

from tlt_engine.config import Precision
from tlt_engine.drafter.model import DrafterModel
from tlt_engine.drafter.precision import multiply_in
from tlt_engine.drafter_trainer.loss import TargetHead, unrolled_loss
from tlt_engine.drafter_trainer.optimizer import DrafterOptimizer
from tlt_engine.drafter_trainer.sample import PackedBatch, Sample
from tlt_engine.drafter_trainer.unroll import Embed, unroll


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How deep the drafter is unrolled and what it is compared with."""

    num_passes: int
    feature_weight: float


RECIPES = {
    "eagle": Recipe(num_passes=1, feature_weight=1.0),
    "hass": Recipe(num_passes=3, feature_weight=1.0),
    "eagle3": Recipe(num_passes=4, feature_weight=0.0),
}
"""EAGLE (arXiv:2401.15077), HASS (arXiv:2408.15766) and EAGLE-3 (arXiv:2503.01840)."""


class TrainerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the optimizer."""

    recipe: str = "eagle3"
    precision: Precision = "auto"
    """What matrices are multiplied in, the target's head among them; weights and their state are float32."""
    num_passes: tuple[int, ...] = ()
    """Passes of the micro-batches of a step, in turn; empty for the recipe's own. Deep passes cost as much as the first
    and teach less: with some micro-batches shallow, the same time brings a drafter further."""
    learning_rate: float = 4e-3
    warmup_steps: int = 20
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.95)
    max_gradient_norm: float = 1.0


@dataclass(frozen=True)
class StepResult:
    """What one step did."""

    loss: float
    gradient_norm: float
    num_tokens: int
    is_applied: bool
    """False if there was nothing to learn or the gradient was not finite; the weights are then untouched."""


class Trainer:
    """Steps the drafter's weights; the target's embedding and head are references that are never trained.

    A step is one call of ``step``, or ``accumulate`` once a micro-batch and then ``apply``, so that whoever has other
    work may stop in between: ``abandon`` leaves everything as it was.
    """

    def __init__(self, model: DrafterModel, embed: Embed, head: TargetHead, config: TrainerConfig) -> None:
        if config.recipe not in RECIPES:
            raise ValueError(f"recipe: expected one of {sorted(RECIPES)}, got {config.recipe!r}")
        self.model = model
        self.config = config
        self.num_steps = 0
        self.num_tokens = 0
        self.num_skipped: Counter[str] = Counter()
        """Micro-batches and steps that were left out, by reason."""
        self._embed = embed
        self._head = head
        self._recipe = RECIPES[config.recipe]
        self.optimizer = DrafterOptimizer(model, weight_decay=config.weight_decay, betas=config.betas)
        self._schedule_length: int | None = None
        self._first_step = 0
        self._loss_sum = 0.0
        self._pending_tokens = 0
        self._num_pending = 0

    def decay_over(self, num_steps: int) -> None:
        """Lets the learning rate fall to a tenth along a cosine that ends after ``num_steps`` steps in all."""
        self._schedule_length = num_steps

    def follow_new_target(self) -> None:
        """Learns from a head whose weights changed."""
        self._head.refresh()

    def restart_schedule(self) -> None:
        """Warms the learning rate up anew, for text that is no longer what was learnt."""
        self._first_step = self.num_steps

    def step(self, micro_batches: Sequence[Sequence[Sample]]) -> StepResult:
        """Takes one optimizer step; each micro-batch is packed, weighs by its tokens, and is freed before the next.

        Args:
            micro_batches: samples; a micro-batch is what is in memory at a time.
        """
        for samples in micro_batches:
            self.accumulate(samples)
        return self.apply()

    def accumulate(self, samples: Sequence[Sample]) -> bool:
        """Adds one micro-batch to the gradient of the step under way.

        Args:
            samples: of the micro-batch.

        Returns:
            Whether it was added; not if the target wrote none of its tokens or its loss is not finite.
        """
        if not any(sample.num_learnt() for sample in samples):
            self.num_skipped["nothing to learn"] += 1
            return False
        batch = PackedBatch.pack(samples, device=self.model.fc.weight.device)
        with multiply_in(self.config.precision, batch.features.device):
            loss = self._loss(batch, samples) * len(batch)
        if not math.isfinite(loss.item()):
            self.num_skipped["loss not finite"] += 1
            return False
        loss.backward()
        self._loss_sum += loss.item()
        self._pending_tokens += len(batch)
        self._num_pending += 1
        return True

    def apply(self) -> StepResult:
        """Ends the step under way."""
        total, loss = self._pending_tokens, self._loss_sum
        norm, is_applied = 0.0, False
        if total:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad /= total
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_gradient_norm).item()
            is_applied = math.isfinite(norm)
            if is_applied:
                self.optimizer.step(self._learning_rate())
                self.num_steps += 1
                self.num_tokens += total
            else:
                self.num_skipped["gradient not finite"] += 1
        self.abandon()
        return StepResult(loss / max(1, total), norm, total, is_applied)

    def abandon(self) -> None:
        """Forgets the step under way."""
        self.optimizer.zero_grad()
        self._loss_sum, self._pending_tokens, self._num_pending = 0.0, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """Returns what ``load_state_dict`` needs to go on: weights, optimizer, counts."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "num_steps": self.num_steps,
            "num_tokens": self.num_tokens,
            "first_step": self._first_step,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over the state of a trainer of the same model."""
        self.abandon()
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.num_steps, self.num_tokens = state["num_steps"], state["num_tokens"]
        self._first_step = state.get("first_step", 0)

    def _loss(self, batch: PackedBatch, samples: Sequence[Sample]) -> Tensor:
        targets = batch.features.new_zeros(len(batch), self.model.config.draft_vocab_size, dtype=torch.float32)
        vocabulary = self.model.draft_vocabulary
        targets[batch.is_learnt] = torch.cat([self._head.soft_targets(sample, vocabulary) for sample in samples])
        depths = self.config.num_passes or (self._recipe.num_passes,)
        passes = unroll(self.model, batch, self._embed, depths[self._num_pending % len(depths)])
        return unrolled_loss(self.model, passes, targets, batch.features, self._recipe.feature_weight)

    def _learning_rate(self) -> float:
        steps = self.num_steps - self._first_step
        rate = self.config.learning_rate * min(1.0, (steps + 1) / self.config.warmup_steps)
        if self._schedule_length is None:
            return rate
        progress = min(1.0, self.num_steps / self._schedule_length)
        return rate * (0.55 + 0.45 * math.cos(math.pi * progress))
