"""Files that are there whole or not at all, whatever ends the one who writes them."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

PREFIX = ".partial-"


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Writes a file so that a reader sees the old one or the new one, never a part.

    Args:
        path: of the file; its directory is made if it is not there.
        write: called with the open file.

    Raises:
        OSError: it cannot be written; what was there before is intact. What ``write`` raises comes through as well.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=PREFIX, delete=False) as partial:
        try:
            write(partial)
            partial.flush()
            os.fsync(partial.fileno())
            Path(partial.name).replace(path)
        except BaseException:
            Path(partial.name).unlink(missing_ok=True)
            raise


def sweep(directory: Path) -> None:
    """Removes what writers left that were killed; nobody else may be writing there."""
    for partial in directory.glob(f"{PREFIX}*"):
        partial.unlink(missing_ok=True)
