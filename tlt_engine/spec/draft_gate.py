"""What choosing drafts taught: whether looking for any pays at a batch size, and what the chosen ones are worth."""

import math

SMOOTHING = 0.1
"""Weight of the newest step in the running mean."""

PROBE_EVERY = 16
"""Steps after which a closed gate lets one search through, so that it can open again."""

BIAS_PRIOR, BIAS_FADING = 5.0, 0.99
"""Expected drafts that the absence of a bias is worth, and what is left of older ones after each search."""

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


class ChoiceBias:
    """Share of their estimates that chosen drafts turn out to be worth, by batch size.

    Estimates are right on average, but the best of many estimates are chosen, and these are too high more often than
    too low; the more requests there are to choose from, the more so. Old drafts fade with every search, so that a
    discount under which nothing is chosen any more does not stay for ever.
    """

    def __init__(self) -> None:
        self._sums: dict[int, list[float]] = {}
        self._latest = [0.0, 0.0]

    def discount(self, num_reqs: int) -> float:
        """Returns accepted over expected drafts at a batch size, never above 1."""
        expected, accepted = self._sums.get(_size_class(num_reqs), (0.0, 0.0))
        return min(1.0, (BIAS_PRIOR + accepted) / (BIAS_PRIOR + expected))

    def record_chosen(self, num_reqs: int, expected: float) -> None:
        """Adds the drafts of one search and forgets a little of the older ones."""
        self._latest = self._sums.setdefault(_size_class(num_reqs), [0.0, 0.0])
        self._latest[0] = BIAS_FADING * self._latest[0] + expected
        self._latest[1] *= BIAS_FADING

    def record_accepted(self, num_accepted: int) -> None:
        """Adds what became of drafts of the latest search."""
        self._latest[1] += num_accepted


def _size_class(num_reqs: int) -> int:
    """Batch sizes within a factor of about 1.2 share a gate."""
    return round(4 * math.log2(num_reqs))
