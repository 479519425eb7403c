"""Drafters of the tiny target."""

from pathlib import Path

import torch.nn.functional as F
from transformers import AutoConfig

from tlt_engine.drafter.checkpoint import Provenance, TargetIdentity, save_checkpoint
from tlt_engine.drafter.config import DrafterConfig
from tlt_engine.drafter.initialise import TargetWeights, initialise
from tlt_engine.drafter.model import DrafterModel
from tlt_engine.drafter_trainer.loss import TargetHead
from tlt_engine.drafter_trainer.trainer import Trainer, TrainerConfig
from tlt_engine.drafter_trainer.vocabulary import choose_draft_vocabulary
from tlt_engine.drafter_trainer.warmup import epoch

TRAINING_PASSES = 30
DRAFT_VOCAB = 400


def make_drafters(target: str, samples, folder: Path) -> tuple[str, str]:
    """Writes a drafter that was trained on the samples, and one that was not trained; returns where."""
    config = AutoConfig.from_pretrained(target)
    weights = TargetWeights(Path(target))
    model = DrafterModel(DrafterConfig.from_target(config, window=96, draft_vocab_size=DRAFT_VOCAB))
    model.set_draft_vocabulary(choose_draft_vocabulary(samples, DRAFT_VOCAB, config.vocab_size))
    initialise(model, weights, config.num_hidden_layers, "last_layer")
    untrained = _save(model, config, folder / "untrained")
    embedding, head = weights.embedding, weights.head
    trainer = Trainer(
        model,
        lambda token_ids: F.embedding(token_ids, embedding),
        TargetHead(lambda: head),
        TrainerConfig(learning_rate=3e-3),
    )
    for number in range(TRAINING_PASSES):
        for micro_batches in epoch(samples, number):
            trainer.step(micro_batches)
    return _save(model, config, folder / "trained"), untrained


def _save(model, config, folder):
    identity = TargetIdentity.of("tiny", config, None, model.draft_vocabulary)
    provenance = Provenance(target=identity, recipe="eagle3", num_tokens_seen=0, num_steps=0)
    save_checkpoint(folder, model, provenance)
    return str(folder)
