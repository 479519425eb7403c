"""One optimizer step at a time; when and on what is for others to say."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import Tensor

from tlt_engine.config import Precision
from tlt_engine.drafter.model import DrafterModel
from tlt_engine.drafter.precision import multiply_in
from tlt_engine.drafter_trainer.loss import TargetHead, soft_targets, unrolled_loss
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
    """False if the gradient was not finite; the weights are then untouched."""


class Trainer:
    """Steps the drafter's weights; the target's embedding and head are references that are never trained."""

    def __init__(self, model: DrafterModel, embed: Embed, head: TargetHead, config: TrainerConfig) -> None:
        if config.recipe not in RECIPES:
            raise ValueError(f"recipe: expected one of {sorted(RECIPES)}, got {config.recipe!r}")
        self.model = model
        self.config = config
        self.num_steps = 0
        self.num_tokens = 0
        self._embed = embed
        self._head = head
        self._recipe = RECIPES[config.recipe]
        self.optimizer = DrafterOptimizer(model, weight_decay=config.weight_decay, betas=config.betas)
        self._schedule_length: int | None = None

    def decay_over(self, num_steps: int) -> None:
        """Lets the learning rate fall to a tenth along a cosine that ends after ``num_steps`` steps in all."""
        self._schedule_length = num_steps

    def step(self, micro_batches: Sequence[Sequence[Sample]]) -> StepResult:
        """Takes one optimizer step; each micro-batch is packed, weighs by its tokens, and is freed before the next.

        Args:
            micro_batches: samples; a micro-batch is what is in memory at a time.
        """
        total = sum(len(sample) for samples in micro_batches for sample in samples)
        self.optimizer.zero_grad()
        loss_sum = 0.0
        for samples in micro_batches:
            batch = PackedBatch.pack(samples)
            with multiply_in(self.config.precision, batch.features.device):
                loss = self._loss(batch) * (len(batch) / total)
            loss.backward()
            loss_sum += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_gradient_norm).item()
        is_applied = math.isfinite(norm)
        if is_applied:
            self.optimizer.step(self._learning_rate())
            self.num_steps += 1
            self.num_tokens += total
        return StepResult(loss_sum, norm, total, is_applied)

    def state_dict(self) -> dict[str, Any]:
        """Returns what ``load_state_dict`` needs to go on: weights, optimizer, counts."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "num_steps": self.num_steps,
            "num_tokens": self.num_tokens,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over the state of a trainer of the same model."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.num_steps, self.num_tokens = state["num_steps"], state["num_tokens"]

    def _loss(self, batch: PackedBatch) -> Tensor:
        targets = soft_targets(batch.final_hidden, self._head, self.model.draft_vocabulary)
        passes = unroll(self.model, batch, self._embed, self._recipe.num_passes)
        return unrolled_loss(self.model, passes, targets, batch.features, self._recipe.feature_weight)

    def _learning_rate(self) -> float:
        rate = self.config.learning_rate * min(1.0, (self.num_steps + 1) / self.config.warmup_steps)
        if self._schedule_length is None:
            return rate
        progress = min(1.0, self.num_steps / self._schedule_length)
        return rate * (0.55 + 0.45 * math.cos(math.pi * progress))
