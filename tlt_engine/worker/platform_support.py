"""Whether a target can be served with method ``tlt``: asked before weights load, answered in one sentence."""

from pathlib import Path

from transformers import AutoTokenizer
from vllm import envs
from vllm.config import ModelConfig, ParallelConfig

from tlt_engine.drafter.checkpoint import Checkpoint, check_fits_target, load_checkpoint


def refuse_unservable(model: ModelConfig, parallel: ParallelConfig) -> None:
    """Refuses what could only be served wrongly.

    Raises:
        ValueError: says what cannot be served and what works instead.
    """
    reason = _reason(model, parallel)
    if reason is not None:
        raise ValueError(f"method 'tlt' cannot serve {model.model}: {reason}")


def load_fitting_drafter(directory: Path, model: ModelConfig) -> Checkpoint:
    """Reads a drafter and refuses one that is damaged or was made for another target.

    Raises:
        ValueError: says what is wrong with it.
    """
    tokenizer = None
    if not model.skip_tokenizer_init:
        tokenizer = AutoTokenizer.from_pretrained(model.tokenizer, trust_remote_code=model.trust_remote_code)
    checkpoint = load_checkpoint(directory)
    check_fits_target(checkpoint, model.hf_text_config, tokenizer, f"drafter {directory}")
    return checkpoint


def _reason(model: ModelConfig, parallel: ParallelConfig) -> str | None:
    if model.runner_type != "generate":
        return "it does not generate text; serve pooling models without speculation"
    if model.is_hybrid or model.has_inner_state or model.is_attention_free:
        return (
            "its recurrent layers cannot take back rejected draft tokens; serve it without speculation, "
            "or with vLLM's own method 'mtp' if the model has one"
        )
    if model.is_multimodal_model:
        return (
            "multimodal targets are not supported; serve it without speculation, "
            "or serve a text-only checkpoint of the same family"
        )
    if model.is_encoder_decoder or model.is_diffusion:
        return "only decoder-only language models have draft tokens; serve it without speculation"
    if parallel.pipeline_parallel_size > 1:
        return (
            f"pipeline_parallel_size={parallel.pipeline_parallel_size}, but draft trees live on one stage; "
            "use --tensor-parallel-size or --data-parallel-size instead"
        )
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        return "context parallelism splits the KV cache that draft trees share; use --tensor-parallel-size instead"
    if envs.VLLM_USE_V2_MODEL_RUNNER:
        return "VLLM_USE_V2_MODEL_RUNNER=1 asks for a runner without custom proposers; unset it"
    return None
