"""Muon for all matrices but the head, AdamW for the rest, behind one rate and one state."""

from collections.abc import Mapping
from typing import Any

import torch

from tlt_engine.drafter.model import DrafterModel

MATRIX_RATE = 5.0
"""Learning rate of the matrices, relative to that of the rest."""


class DrafterOptimizer:
    """Steps the weights of a drafter.

    Muon brings a drafter further than AdamW alone on the same tokens (``docs/learned_drafter.md``). The head is left to
    AdamW, as Muon's author advises.

    Source: Muon (Jordan et al., 2024) with the scale of Moonlight (arXiv:2502.16982); AdamW (arXiv:1711.05101).
    """

    def __init__(self, model: DrafterModel, *, weight_decay: float, betas: tuple[float, float]) -> None:
        """Divides the trainable weights; norms and biases do not decay.

        Args:
            model: the drafter.
            weight_decay: of the matrices and the head, relative to the learning rate.
            betas: of AdamW.
        """
        head = model.lm_head.weight
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        matrices = [parameter for parameter in trainable if parameter.ndim > 1 and parameter is not head]
        vectors = [parameter for parameter in trainable if parameter.ndim <= 1]
        self._muon = torch.optim.Muon(matrices, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
        groups: list[dict[str, Any]] = [
            {"params": [head], "weight_decay": weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self._adamw = torch.optim.AdamW(groups, betas=betas, fused=True)

    def zero_grad(self) -> None:
        """Frees the gradients."""
        self._muon.zero_grad(set_to_none=True)
        self._adamw.zero_grad(set_to_none=True)

    def step(self, learning_rate: float) -> None:
        """Applies the gradients.

        Args:
            learning_rate: of AdamW; Muon's is ``MATRIX_RATE`` times as much.
        """
        for optimizer, rate in ((self._muon, MATRIX_RATE * learning_rate), (self._adamw, learning_rate)):
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Returns what ``load_state_dict`` needs to go on."""
        return {"muon": self._muon.state_dict(), "adamw": self._adamw.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over the state of an optimizer of the same model."""
        self._muon.load_state_dict(state["muon"])
        self._adamw.load_state_dict(state["adamw"])
