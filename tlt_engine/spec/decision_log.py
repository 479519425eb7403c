"""What was decided in each step and what came of it, as lines of JSON in a bounded file."""

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

import msgspec

MAX_BYTES = 32 << 20
"""Of the file; once it is full it becomes ``PATH.1``, in place of an earlier one, and a new one begins."""

logger = logging.getLogger(f"vllm.{__name__}")


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One decode step."""

    seconds_since_start: float
    batch_size: int
    strategy: str
    is_exploration: bool
    draft_rows: int
    num_accepted: int
    """Draft tokens accepted over all requests, bonus excluded."""
    seconds: float
    """From token to token."""
    draft_seconds: float
    target_seconds: float
    plain_seconds: float
    """What a step without drafts was expected to take."""


class DecisionLog:
    """Appends decisions to a file; a file that cannot be written costs the log and nothing else."""

    def __init__(self, path: Path) -> None:
        """Opens the file.

        Raises:
            ValueError: it cannot be written.
        """
        try:
            self._handler: RotatingFileHandler | None = RotatingFileHandler(path, maxBytes=MAX_BYTES, backupCount=1)
        except OSError as error:
            raise ValueError(f"adaptive.decision_log: cannot write {path}: {error.strerror}") from error
        self._handler.handleError = self._stop  # type: ignore[method-assign]

    def write(self, decision: Decision) -> None:
        """Appends one line."""
        if self._handler is not None:
            line = msgspec.json.encode(decision).decode()
            self._handler.emit(logging.LogRecord("decision", logging.INFO, "", 0, line, None, None))

    def _stop(self, record: logging.LogRecord) -> None:
        logger.warning("The decision log is not written any more, serving goes on; is the disk full?", exc_info=True)
        self._handler = None


def read_decisions(path: Path) -> list[Decision]:
    """Reads a log and, before it, the older part that it grew out of.

    Raises:
        ValueError: there is no such file, or a line of it is no decision.
    """
    older = path.with_name(path.name + ".1")
    decisions = []
    for part in (older, path):
        if part == older and not part.exists():
            continue
        try:
            lines = part.read_bytes().splitlines()
        except OSError as error:
            raise ValueError(f"{part}: cannot be read: {error.strerror}") from error
        for number, line in enumerate(lines, start=1):
            try:
                decisions.append(msgspec.json.decode(line, type=Decision))
            except msgspec.MsgspecError as error:
                if part == path and number == len(lines):  # an engine that was killed leaves half a line
                    break
                raise ValueError(f"{part}, line {number}: no decision of a step: {error}") from None
    return decisions
