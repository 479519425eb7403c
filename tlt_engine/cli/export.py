"""``tlt-engine export``: a drafter in the format of another engine."""

import argparse
from pathlib import Path

from tlt_engine.drafter.checkpoint import load_checkpoint
from tlt_engine.drafter.export import FORMATS, export
from tlt_engine.drafter.initialise import TargetWeights


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("drafter", type=Path, help="its directory")
    parser.add_argument("--to", choices=FORMATS, required=True)
    parser.add_argument("--out", type=Path, required=True, help="directory to write; must not hold anything")
    parser.add_argument("--target", help="directory of the target; speculators needs its embedding")


def run(options: argparse.Namespace) -> int:
    """Writes the export.

    Raises:
        ValueError: the drafter is not whole, or the format cannot hold it.
    """
    checkpoint = load_checkpoint(options.drafter)
    if options.to == "speculators" and options.target is None:
        raise ValueError("--to speculators: its files hold the target's embedding; name the target with --target DIR")
    embedding = TargetWeights(Path(options.target)).embedding if options.to == "speculators" else None
    export(checkpoint, options.out, to=options.to, target=options.target, embedding=embedding)
    print(f"written: {options.out}")
    return 0
