"""Samples on their way from the step path to the trainer's thread, which may not look for a long while."""

from collections import deque

from tlt_engine.drafter_trainer.sample import Sample


class Inbox:
    """Takes samples without ever waiting, and keeps the latest within a cap of bytes.

    There is no lock: a thread of lowest priority that held one could keep a step waiting.
    """

    def __init__(self, max_bytes: int) -> None:
        """Starts empty.

        Args:
            max_bytes: cap on the tensors of what waits.
        """
        self.num_dropped = 0
        """Samples that nobody took in time."""
        self.max_bytes = max_bytes
        self._samples: deque[Sample] = deque()

    def put(self, sample: Sample) -> None:
        """Leaves a sample; the oldest go if there is no room."""
        self._samples.append(sample)
        while len(self._samples) > 1 and self.num_bytes() > self.max_bytes:
            if self.take() is None:
                return
            self.num_dropped += 1

    def take(self) -> Sample | None:
        """Returns the oldest sample, or None if there is none."""
        try:
            return self._samples.popleft()
        except IndexError:
            return None

    def num_bytes(self) -> int:
        """Returns the bytes of what waits."""
        return sum(sample.num_bytes() for sample in tuple(self._samples))
