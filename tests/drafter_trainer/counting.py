"""Text that counts, a target that knows it, and a trainer that can learn it in seconds."""

import torch

from drafter.small import VOCAB, random_embedding, small_drafter
from tlt_engine.drafter_trainer.loss import TargetHead
from tlt_engine.drafter_trainer.sample import Sample
from tlt_engine.drafter_trainer.trainer import Trainer, TrainerConfig

EMBEDDING = random_embedding().float()


def embed(token_ids):
    return EMBEDDING[token_ids]


def counting_sample(start: int, num_tokens: int = 24, *, by: int = 2, version: int = 0, name: str = "") -> Sample:
    """Text that counts up; the target is sure of each next token."""
    token_ids = (torch.arange(num_tokens) * by + start) % VOCAB
    return Sample(
        req_id=name or f"{version}.{by}.{start}",
        token_ids=token_ids,
        features=EMBEDDING[token_ids].repeat(1, 2),
        final_hidden=EMBEDDING[(token_ids + by) % VOCAB],
        target_version=version,
    )


def new_trainer(recipe="eagle3", **settings):
    model = small_drafter().float().requires_grad_(True)
    for parameter in model.parameters():
        parameter.data *= 0.3 if parameter.ndim > 1 else 1.0
    defaults = {"recipe": recipe, "learning_rate": 1e-2, "precision": "float32"}
    return Trainer(model, embed, TargetHead(lambda: EMBEDDING), TrainerConfig(**defaults | settings))
