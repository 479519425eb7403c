"""Where a trained drafter comes from: its first weights, the target it learns from, and what is written about it."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers.utils import cached_file
from vllm.config import ModelConfig
from vllm.logger import init_logger
from vllm.tokenizers import cached_tokenizer_from_config

from tlt_engine import __version__
from tlt_engine.config import TrainConfig
from tlt_engine.drafter.checkpoint import Checkpoint, Provenance, TargetIdentity
from tlt_engine.drafter.initialise import TargetWeights, initialise
from tlt_engine.drafter.model import DrafterModel
from tlt_engine.drafter.runtime import DrafterRuntime
from tlt_engine.drafter_trainer.loss import TargetHead
from tlt_engine.drafter_trainer.publication import Publication
from tlt_engine.drafter_trainer.sample import Sample
from tlt_engine.drafter_trainer.trainer import Trainer, TrainerConfig
from tlt_engine.drafter_trainer.vocabulary import choose_draft_vocabulary
from tlt_engine.worker.shared_embedding import SharedEmbedding

logger = init_logger(f"vllm.{__name__}")


PASSES = (4, 2, 1, 2)
"""Of the micro-batches of a step, in turn."""


class StartingPoint(NamedTuple):
    """What is served, and trained on, at the start."""

    checkpoint: Checkpoint | None
    is_kept: bool
    """Whether an earlier run left it, whose training is gone on with."""

    def build(self, device: torch.device) -> DrafterModel | None:
        """Returns the drafter in float32, without gradients."""
        return None if self.checkpoint is None else self.checkpoint.build().float().requires_grad_(False).to(device)


class DrafterOrigin:
    """The target as the trainer sees it; embedding and head are read where they are, while they also serve."""

    def __init__(
        self,
        model_config: ModelConfig,
        runtime: DrafterRuntime,
        target: Any,
        embedding: SharedEmbedding,
        config: TrainConfig,
    ) -> None:
        """Wraps a target.

        Args:
            model_config: of the target.
            runtime: has the drafter's shape and device.
            target: the target's module.
            embedding: the target's.
            config: of the training.
        """
        self._model_config = model_config
        self._runtime = runtime
        self._target = target
        self._embedding = embedding
        self._config = config

    def build_trainer(self, samples: Sequence[Sample], initial: DrafterModel | None) -> Trainer:
        """Makes the trainer of a drafter.

        Args:
            samples: text of the target; a new drafter drafts the tokens that it holds most often.
            initial: a drafter to go on from; None makes a new one with first weights of the target.
        """
        if initial is not None:
            model = copy.deepcopy(initial)
        else:
            model = DrafterModel(self._runtime.config)
            config = model.config
            model.set_draft_vocabulary(choose_draft_vocabulary(samples, config.draft_vocab_size, config.vocab_size))
            self._initialise(model)
        model = model.to(self._runtime.device).requires_grad_(True)
        settings = TrainerConfig(learning_rate=self._config.learning_rate, num_passes=PASSES)
        return Trainer(model, self.look_up, TargetHead(self._head_weight), settings)

    def look_up(self, token_ids: Tensor) -> Tensor:
        """Returns the target's embeddings ``[T, hidden_size]`` of token ids ``[T]``, in float32."""
        return self._embedding(token_ids).float()

    def provenance(self, publication: Publication) -> Provenance:
        """Describes weights that went live."""
        config = self._model_config
        tokenizer = None if config.skip_tokenizer_init else cached_tokenizer_from_config(config)
        vocabulary = publication.model.draft_vocabulary.cpu()
        return Provenance(
            target=TargetIdentity.of(config.model, config.hf_text_config, tokenizer, vocabulary),
            recipe=TrainerConfig().recipe,
            num_tokens_seen=publication.num_tokens,
            num_steps=publication.num_steps,
            held_out="responses that were served and not trained on",
            held_out_acceptance_rates=publication.acceptance.rates,
            engine_version=__version__,
        )

    def _initialise(self, model: DrafterModel) -> None:
        """Takes first weights from the target's files; at random where they cannot be read."""
        name = self._model_config.model
        try:
            folder = Path(name) if Path(name).is_dir() else Path(str(cached_file(name, "config.json"))).parent
            num_layers = self._model_config.hf_text_config.num_hidden_layers
            initialise(model, TargetWeights(folder), num_layers, "last_layer", self._config.seed)
        except (OSError, ValueError, KeyError, SafetensorError) as error:  # quantised targets have other tensors
            logger.warning("The drafter starts from random weights, the target's cannot be read: %r", error)
            initialise(model, None, 0, "random", self._config.seed)

    def _head_weight(self) -> Tensor:
        """Returns the target's head as it is now, without padding."""
        weight: Tensor = self._target.lm_head.weight[: self._model_config.get_vocab_size()]
        return weight
