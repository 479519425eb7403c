"""What rows cost on this machine, kept from one start to the next: measuring it takes seconds of every start."""

import hashlib
import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import torch
from vllm import envs
from vllm.config import VllmConfig
from vllm.distributed import get_tp_group
from vllm.logger import init_logger

from tlt_engine.drafter.whole_file import write_whole

logger = init_logger(f"vllm.{__name__}")

LASTS_SECONDS = 30 * 24 * 3600
"""Kernels and firmware change without telling."""

Profile = dict[int, float]
"""Seconds of a step by its rows."""


class _Kept(msgspec.Struct, frozen=True):
    measured_at: float
    profile: dict[str, float]


def kept_or_measured(vllm_config: VllmConfig, max_rows: int, measure: Callable[[], Profile]) -> Profile:
    """Returns the profile of an earlier start of the same model on the same machine, or else measures one.

    Args:
        vllm_config: of the engine.
        max_rows: largest row count that speculation could ask for.
        measure: takes a few seconds; with tensor parallelism all ranks take part.
    """
    path = Path(envs.VLLM_CACHE_ROOT) / "tlt_engine" / f"step_profile-{_key(vllm_config, max_rows)}.json"
    group = get_tp_group()
    kept = _read(path) if group.is_first_rank else None
    if group.world_size > 1:  # all measure or none does
        kept = group.broadcast_object(kept)
    if kept is not None:
        return kept
    profile = measure()
    if group.is_first_rank:
        _keep(path, profile)
    return profile


def _key(vllm_config: VllmConfig, max_rows: int) -> str:
    """Names whatever the cost depends on."""
    model = vllm_config.model_config
    parts: Mapping[str, object] = {
        "model": model.compute_hash(),
        "path": model.model,
        "quantization": model.quantization,
        "parallel": vllm_config.parallel_config.tensor_parallel_size,
        "eager": model.enforce_eager,
        "rows": max_rows,
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "machine": _machine(),
        "torch": torch.__version__,
    }
    return hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()[:24]


def _machine() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{platform.node()} {names[0] if names else platform.processor()} {len(names)}"


def _read(path: Path) -> Profile | None:
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
    except (OSError, msgspec.MsgspecError):
        return None
    age = time.time() - kept.measured_at
    return {int(rows): seconds for rows, seconds in kept.profile.items()} if 0 <= age < LASTS_SECONDS else None


def _keep(path: Path, profile: Profile) -> None:
    text = msgspec.json.encode(_Kept(time.time(), {str(rows): seconds for rows, seconds in profile.items()}))
    try:
        write_whole(path, lambda file: file.write(text))
    except OSError as error:
        logger.info("The step profile is not kept for the next start: %r", error)
