"""Whether looking for drafts pays at all at a batch size: the search itself costs time, and crowds gain little."""

import math

SMOOTHING = 0.1
"""Weight of the newest step in the running mean."""

PROBE_EVERY = 16
"""Steps after which a closed gate lets one search through, so that it can open again."""

FIRST_LOOK = 8
"""Steps that always pass at a new batch size, before the mean means anything."""


class DraftGate:
    """Keeps, for each batch size, the mean seconds a step gains by drafting, minus what the search took."""

    def __init__(self) -> None:
        self._net_seconds: dict[int, float] = {}
        self._num_recorded: dict[int, int] = {}
        self._num_closed = 0

    def should_draft(self, num_reqs: int) -> bool:
        """Decides for one step with ``num_reqs`` requests; every ``PROBE_EVERY``-th refusal lets one pass."""
        size = _size_class(num_reqs)
        if self._num_recorded.get(size, 0) < FIRST_LOOK or self._net_seconds[size] > 0:
            return True
        self._num_closed += 1
        return self._num_closed % PROBE_EVERY == 0

    def record(self, num_reqs: int, saved_seconds: float, search_seconds: float) -> None:
        """Adds what one search is expected to save in its step, and what it took."""
        size = _size_class(num_reqs)
        net = saved_seconds - search_seconds
        mean = self._net_seconds.get(size, net)
        self._net_seconds[size] = mean + SMOOTHING * (net - mean)
        self._num_recorded[size] = self._num_recorded.get(size, 0) + 1


def _size_class(num_reqs: int) -> int:
    """Batch sizes within a factor of about 1.2 share a gate."""
    return round(4 * math.log2(num_reqs))
