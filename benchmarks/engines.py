"""The engines that benchmarks compare, by name: they differ in the speculative configuration and in nothing else."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

ENGINE_ENVIRONMENT: dict[str, str] = {
    # In-process: 36 ms a plain step at batch 1 on 2 cores, against 42-51 ms with vLLM's engine in its own process.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    # All cores for every engine: stock's ngram proposer (through numba) widens the OpenMP pool to all cores whatever
    # the environment says, so with one thread the others would be measured at half its machine.
    "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Set for every engine alike, before vLLM is imported."""

TLT_ENGINES_NEEDING_ANSWERS = frozenset({"tlt-oracle"})
"""Engines whose drafter is told the responses beforehand; a benchmark runs them after the engine that makes these."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """What all engines of one comparison have in common."""

    model: str
    """Directory of the target model."""
    max_model_len: int = 2048
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 8192
    """Above the sum of all prompts: a chunked prefill with a per-request seed kills stock's CPU engine."""
    dtype: str = "float32"
    seed: int = 0
    drafter: str | None = None
    """Directory of the trained drafter, for the engines that draft with one."""
    exported_drafter: str | None = None
    """The same in vLLM's layout, for stock's ``eagle3``."""

    def to_vllm(self) -> dict[str, Any]:
        """Returns the keyword arguments of ``vllm.LLM`` without the speculative configuration."""
        return {
            "model": self.model,
            "dtype": self.dtype,
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "seed": self.seed,
            "enforce_eager": True,
            "disable_log_stats": False,  # the acceptance length comes out of the metrics
        }


TRAINED, EXPORTED = "<drafter>", "<exported drafter>"
"""Stand for the directories in the settings."""

FIXED_STRATEGIES: dict[str, dict[str, Any]] = {
    "ngram": {"drafter": "ngram", "verify_width": 6},
    "chain": {"drafter": "learned", "top_k": 1},
    "tree": {"drafter": "learned", "verify_width": 6},
    "shallow": {"drafter": "both", "draft_depth": 1, "verify_width": 6},
    "both": {"drafter": "both", "verify_width": 6},
}
"""The default strategies with a drafter, each alone as a user would set it by hand. Up to six rows cost a step of one
request no more than one does, so that is their width."""


def _only(**strategy: Any) -> dict[str, Any]:
    """Returns the configuration of an engine that always does one thing."""
    return {
        "method": "tlt",
        "drafter": TRAINED,
        "train": {"enabled": False},
        "adaptive": {"policy": "fixed", "strategies": [strategy]},
    }


_SPECULATIVE_CONFIGS: dict[str, dict[str, Any] | None] = {
    "stock": None,
    "stock-ngram": {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 1,
    },
    "stock-suffix": {"method": "suffix", "num_speculative_tokens": 8},
    "tlt-off": {"method": "tlt", "drafter": "none"},
    "tlt-ngram": {"method": "tlt", "drafter": "ngram"},
    **{
        f"stock-eagle3-{num_tokens}": {"method": "eagle3", "model": EXPORTED, "num_speculative_tokens": num_tokens}
        for num_tokens in (2, 3, 4)
    },
    # By hand for SmolLM2-135M on two cores, from decode_learned_*.json: the best static length at each batch size.
    "stock-eagle3-table": {
        "method": "eagle3",
        "model": EXPORTED,
        "num_speculative_tokens": 3,
        "num_speculative_tokens_per_batch_size": [[1, 1, 3], [2, 8, 2], [9, 64, 0]],
    },
    "tlt-learned": {"method": "tlt", "drafter": TRAINED, "train": {"enabled": False}},
    **{f"tlt-only-{name}": _only(**strategy) for name, strategy in FIXED_STRATEGIES.items()},
    "tlt-oracle": {"method": "tlt", "drafter": "benchmarks.oracle:OracleDrafter", "num_speculative_tokens": 7},
}
ENGINE_NAMES: tuple[str, ...] = tuple(_SPECULATIVE_CONFIGS)


def needs_drafter(engine: str) -> bool:
    """Returns whether an engine drafts with a trained drafter."""
    return any(value in (TRAINED, EXPORTED) for value in (_SPECULATIVE_CONFIGS.get(engine) or {}).values())


def speculative_config(engine: str, settings: EngineSettings) -> dict[str, Any] | None:
    """Returns the speculative configuration of a named engine, a fresh copy.

    Args:
        engine: its name.
        settings: hold the directories of trained drafters.

    Raises:
        ValueError: no engine has that name.
    """
    if engine not in _SPECULATIVE_CONFIGS:
        raise ValueError(f"engine: unknown name {engine!r}; known names: {list(ENGINE_NAMES)}")
    config = _SPECULATIVE_CONFIGS[engine]
    if config is None:
        return None
    directories = {TRAINED: settings.drafter, EXPORTED: settings.exported_drafter}
    return {key: directories.get(value, value) if isinstance(value, str) else value for key, value in config.items()}


def emits_wrong_text(engine: str, temperature: float, on_cpu: bool) -> bool:
    """Says whether an engine is known to emit text the target would not.

    Stock's speculating engines of vLLM 0.32 do so on CPU above temperature 0: unrelated tokens in mid-sentence and
    early ends. Their speed is then no baseline, and a result file has to say so.
    """
    return on_cpu and temperature > 0 and engine.startswith("stock-")


def child_environment() -> dict[str, str]:
    """Returns the environment of an engine's process: the caller's with ``ENGINE_ENVIRONMENT`` on top."""
    return {**os.environ, **ENGINE_ENVIRONMENT}
