"""Training on disk: written beside training and serving, whole or not at all, read again at the next start.

What cannot be written costs a warning, never a step.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from tlt_engine.drafter.whole_file import sweep, write_whole

logger = logging.getLogger(f"vllm.{__name__}")

KEEP = 2
"""States kept beside the newest weights, so that a damaged one costs the time since the one before."""

PATTERN = "training-*.pt"


class TrainingCheckpoints:
    """A directory with the latest states of a training."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="tlt-checkpoint")
        self._pending: Future[None] | None = None
        self.num_written = 0
        self.num_failed = 0

    def load(self) -> dict[str, Any] | None:
        """Returns the newest state that is whole, or None; sweeps up what a killed writer left."""
        sweep(self._directory)
        for file in sorted(self._directory.glob(PATTERN), reverse=True):
            try:
                state: dict[str, Any] = torch.load(file, weights_only=True)
            except Exception as error:  # noqa: BLE001 - torch.load raises whatever a damaged file leads to
                logger.warning("%s is damaged and set aside: %s", file, error)
                file.replace(file.with_suffix(".damaged"))
                continue
            return state
        return None

    def save(self, number: int, state: dict[str, Any], also: Callable[[], object] | None = None) -> bool:
        """Writes a state beside whatever goes on; one at a time, a newer one is left out while one is written.

        Args:
            number: orders the states.
            state: tensors that no longer change.
            also: called before the state is written, on the writing thread.

        Returns:
            Whether it will be written.
        """
        if self._pending is not None and not self._pending.done():
            return False
        self._pending = self._writer.submit(self._write, number, state, also)
        return True

    def close(self) -> None:
        """Waits for what is being written."""
        self._writer.shutdown(wait=True)

    def _write(self, number: int, state: dict[str, Any], also: Callable[[], object] | None) -> None:
        try:
            if also is not None:
                also()
            write_whole(self._directory / f"training-{number:08d}.pt", lambda file: torch.save(state, file))
            for file in sorted(self._directory.glob(PATTERN), reverse=True)[KEEP:]:
                file.unlink(missing_ok=True)
        except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError on a full disk
            self.num_failed += 1
            if self.num_failed == 1:
                logger.warning("Training cannot be kept in %s, it goes on without: %s", self._directory, error)
            return
        self.num_written += 1
