"""``tlt-engine doctor``: one line for each thing that serving with method ``tlt`` needs."""

import importlib.metadata
import platform
from collections.abc import Callable
from pathlib import Path

from tlt_engine import __version__, compat
from tlt_engine.cli import probe


def run(model: str | None = None, drafter: Path | None = None) -> int:
    """Prints the checks.

    Args:
        model: directory of a target to ask about, too.
        drafter: directory of a drafter for it.

    Returns:
        0 if all passed, 1 otherwise.
    """
    checks: list[tuple[str, Callable[[], str]]] = [
        ("python", platform.python_version),
        ("torch", lambda: importlib.metadata.version("torch")),
        ("vllm", _vllm),
        ("seams", _seams),
        ("extension", _extension),
        ("arctic-inference", lambda: importlib.metadata.version("arctic-inference")),
        ("plugin", _plugin),
    ]
    if model is not None:
        checks += probe.checks(model, drafter)
    elif drafter is not None:
        raise ValueError("--drafter needs its target, too: tlt-engine doctor MODEL --drafter DIR")
    print(f"tlt-engine {__version__} on {platform.platform()}")
    is_healthy = True
    for name, check in checks:
        try:
            print(f"  ok    {name:<18} {check()}")
        except (RuntimeError, ValueError, OSError, ImportError, importlib.metadata.PackageNotFoundError) as error:
            is_healthy = False
            print(f"  FAIL  {name:<18} {error}")
    return 0 if is_healthy else 1


def _vllm() -> str:
    compat.check_version()
    return compat.vllm_version() or ""


def _seams() -> str:
    compat.check_seams()
    return f"{len(compat.SEAMS)} of vLLM's attributes found"


def _extension() -> str:
    from tlt_engine import ops

    return f"loaded, ops {ops.__name__}"


def _plugin() -> str:
    names = [entry.name for entry in importlib.metadata.entry_points(group="vllm.general_plugins")]
    if "tlt_engine" not in names:
        raise RuntimeError("the entry point vllm.general_plugins does not list tlt_engine; reinstall tlt-engine")
    return "registered with vLLM"
