"""Makes the drafters that the configuration asks for."""

import importlib
from pathlib import Path

import torch
from vllm.config import VllmConfig
from vllm.logger import init_logger

from tlt_engine.config import BUILT_IN_DRAFTERS, LearnedConfig, TltConfig
from tlt_engine.drafter.checkpoint import FILE_NAME, load_checkpoint
from tlt_engine.drafter.config import DrafterConfig
from tlt_engine.drafter.drafters import Drafters
from tlt_engine.drafter.feature_ring import FeatureRing
from tlt_engine.drafter.runtime import DrafterRuntime, TreeShape
from tlt_engine.spec.drafter import Drafter
from tlt_engine.spec.prompt_lookup import PromptLookup
from tlt_engine.worker.background_training import checkpoint_directory
from tlt_engine.worker.drafter_origin import StartingPoint
from tlt_engine.worker.platform_support import load_fitting_drafter
from tlt_engine.worker.shared_embedding import SharedEmbedding

logger = init_logger(f"vllm.{__name__}")


def read_checkpoint(config: TltConfig, vllm_config: VllmConfig, *, is_trained: bool) -> StartingPoint:
    """Reads the drafter that an earlier run left where this one keeps its training, or else the one that is named.

    Args:
        config: ours.
        vllm_config: of the engine.
        is_trained: whether a drafter is trained in the background.

    Raises:
        ValueError: the one that is named cannot be read.
    """
    kept = checkpoint_directory(config, vllm_config)
    if is_trained and kept is not None and (kept / FILE_NAME).is_file():
        try:
            return StartingPoint(load_fitting_drafter(kept, vllm_config.model_config), is_kept=True)
        except ValueError as error:
            logger.warning("What an earlier run kept is not gone on with: %s", error)
    return StartingPoint(load_checkpoint(Path(config.drafter)) if config.is_learned else None, is_kept=False)


def build_runtime(
    settings: LearnedConfig, vllm_config: VllmConfig, config: DrafterConfig, embedding: SharedEmbedding
) -> tuple[DrafterRuntime, FeatureRing]:
    """Builds what runs a learned drafter, still without weights, and the ring it reads."""
    device = vllm_config.device_config.device
    num_slots = min(vllm_config.scheduler_config.max_num_seqs, settings.capture_threshold)
    width = len(config.aux_layer_ids) * config.target_hidden_size
    ring = FeatureRing(num_slots, config.window, width, dtype=vllm_config.model_config.dtype, device=device)
    is_cpu = ring.device.type == "cpu"
    # On a CPU the native ops take float32, whatever the target's dtype; matrices have a precision of their own.
    dtype = torch.float32 if is_cpu else vllm_config.model_config.dtype
    shape = TreeShape(settings.draft_depth, settings.top_k, settings.min_reach if is_cpu else 0.0)
    return DrafterRuntime(config, embedding, ring, num_slots, shape, dtype, settings.precision), ring


def build_drafters(config: TltConfig, vocab_size: int) -> Drafters:
    """Builds the configured drafters but the network, which needs the target.

    Raises:
        ValueError: the user's own drafter cannot be imported or does not take its arguments.
    """
    if config.drafter == "none":
        return Drafters(vocab_size)
    if config.drafter in BUILT_IN_DRAFTERS or config.is_learned:
        return Drafters(vocab_size, lookup=PromptLookup(config.prompt_lookup))
    module_name, _, class_name = config.drafter.partition(":")
    try:
        own: Drafter = getattr(importlib.import_module(module_name), class_name)(**config.drafter_args)
    except (ImportError, AttributeError, TypeError) as error:
        raise ValueError(f"speculative_config.drafter: cannot build {config.drafter!r}: {error}") from error
    return Drafters(vocab_size, own=own)
