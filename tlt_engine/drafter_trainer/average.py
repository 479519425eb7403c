"""A running average of the weights: what is published, so that a rate that never falls may stay high."""

import copy
from collections.abc import Mapping
from typing import Any

import torch

from tlt_engine.drafter.model import DrafterModel

DECAY = 0.98


class WeightAverage:
    """Follows the weights with a memory of ``1 / (1 - DECAY)`` steps, shorter at first.

    It takes the place of a falling learning rate, which needs to know when training ends.

    Source: Polyak averaging (1992), with the warm-up of Karras et al. (arXiv:2312.02696) in its simplest form.
    """

    def __init__(self, model: DrafterModel) -> None:
        """Starts at the weights of ``model``."""
        self.model = copy.deepcopy(model).requires_grad_(False)
        self._num_steps = 0

    @torch.no_grad()
    def follow(self, model: DrafterModel) -> None:
        """Takes one step towards the weights of ``model``."""
        self._num_steps += 1
        weight = 1.0 - min(DECAY, self._num_steps / (9.0 + self._num_steps))
        mine, theirs = ([parameter.detach() for parameter in each.parameters()] for each in (self.model, model))
        torch._foreach_lerp_(mine, theirs, weight)

    def state_dict(self) -> dict[str, Any]:
        """Returns what ``load_state_dict`` needs to go on."""
        return {"model": self.model.state_dict(), "num_steps": self._num_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over another average's state."""
        self.model.load_state_dict(state["model"])
        self._num_steps = state["num_steps"]
