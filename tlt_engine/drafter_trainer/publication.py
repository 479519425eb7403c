"""What passes between the coordinator and those around it."""

import enum
from dataclasses import dataclass
from typing import Any

import msgspec

from tlt_engine.drafter.model import DrafterModel
from tlt_engine.drafter_trainer.acceptance import Accepted


class Phase(enum.Enum):
    """Where training stands."""

    COLLECTING = "collecting"
    """There is too little text to begin with."""
    TRAINING = "training"
    CONVERGED = "converged"
    """More training on this text is of no use; new text is watched for drift."""


class CoordinatorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of the pieces."""

    micro_batch_tokens: int = 256
    """Tokens between two points where training can stop."""
    step_tokens: int = 1024
    """Tokens of an optimizer step, whose own work is that of some hundred."""
    first_tokens: int = 1024
    """Tokens to learn from before the drafter is built."""
    evaluation_tokens: tuple[int, int] = (4096, 40960)
    """Fewest and most tokens trained between two evaluations; in between a quarter of all trained."""
    held_out_tokens: int = 6144
    """Held-out tokens that an evaluation reads, from the newest target's samples evenly over time."""
    depth: int = 4
    """Draft tokens of the chain that is evaluated."""


@dataclass(frozen=True)
class Publication:
    """Weights that go live."""

    model: DrafterModel
    """No longer trained; the receiver may keep but not change it."""
    version: int
    acceptance: Accepted
    """Of a greedy chain on held-out text."""
    num_tokens: int
    """Trained on so far."""
    num_steps: int
    state: dict[str, Any]
    """What ``Coordinator.resume`` needs; tensors of its own."""
