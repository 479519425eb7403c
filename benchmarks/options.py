"""Command-line options that all engine benchmarks share."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.engines import ENGINE_NAMES, needs_drafter
from benchmarks.result import RESULTS_DIR
from tlt_engine.drafter.checkpoint import load_checkpoint
from tlt_engine.drafter.export import export

DEFAULT_MODEL = Path(__file__).parent.parent / "models" / "smollm2-135m-instruct"


LEARNED_ENGINES = ("stock-eagle3-2", "stock-eagle3-3", "stock-eagle3-4", "tlt-learned")
"""What a benchmark adds when it is given a trained drafter."""


def add_common_options(
    parser: argparse.ArgumentParser,
    engines: Sequence[str],
    quick_engines: Sequence[str],
    learned_engines: Sequence[str] = LEARNED_ENGINES,
) -> None:
    """Adds model, engines, repetitions, output folder and ``--quick``.

    Args:
        parser: Where they go.
        engines: The benchmark's own choice; ``stock`` is always among those that run.
        quick_engines: Its choice for ``--quick``: an engine takes 15 seconds to start.
        learned_engines: What it adds when it is given a trained drafter.
    """
    parser.add_argument("--model", type=model_directory, default=str(DEFAULT_MODEL), help="directory of the target")
    parser.add_argument("--engines", nargs="+", choices=ENGINE_NAMES, action=_StockFirst)
    parser.set_defaults(
        full_engines=list(engines), quick_engines=list(quick_engines), learned_engines=list(learned_engines)
    )
    parser.add_argument("--drafter", type=model_directory, help="directory of a trained drafter; adds its engines")
    parser.add_argument("--repetitions", type=int, default=3, help="rounds; the engines take turns in each")
    parser.add_argument("--output", type=Path, default=RESULTS_DIR, help="folder of the result file")
    parser.add_argument("--quick", action="store_true", help="a smoke test of under two minutes that keeps no file")


def chosen_engines(arguments: argparse.Namespace) -> list[str]:
    """Returns the engines that were asked for, or else the benchmark's own choice."""
    chosen = arguments.engines or (arguments.quick_engines if arguments.quick else arguments.full_engines)
    if arguments.drafter is None and any(map(needs_drafter, chosen)):
        raise SystemExit("these engines need a trained drafter, name its directory with --drafter")
    if arguments.drafter is not None and arguments.engines is None:
        chosen = [*chosen, *arguments.learned_engines]
    return chosen


@contextmanager
def exported_drafter(drafter: str | None) -> Iterator[str | None]:
    """Writes a trained drafter in vLLM's layout for as long as the benchmark runs."""
    if drafter is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        export(load_checkpoint(Path(drafter)), Path(folder) / "eagle3", to="vllm")
        yield str(Path(folder) / "eagle3")


def model_name(model: str) -> str:
    """Returns how a result file calls a model: its directory's name, not where it lies."""
    return Path(model).name


def model_directory(text: str) -> str:
    """Makes a relative path absolute: engines run in processes with another working directory."""
    return str(Path(text).resolve()) if Path(text).exists() else text


class _StockFirst(argparse.Action):
    """Stores the chosen engines with the baseline in front."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: Sequence[str] | str | None,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        setattr(namespace, self.dest, list(dict.fromkeys(["stock", *(values or ())])))
