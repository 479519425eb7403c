"""Notices that a drafter's guesses stopped coming true, which nobody would see: the output stays right."""

import math
from collections import deque

RECENT = 128
"""Guesses that are judged together."""

MEMORY = 4096.0
"""Guesses that the drafter's own history weighs at most."""

LEAST_SHARE = 0.25
"""Of what the drafter was worth before; less is a collapse. Other text alone may halve it."""

LEAST_SHARE_OF_PROVENANCE = 0.2
"""Of what it was worth where it was trained; other text may well be harder."""

DEVIATIONS = 4.0
"""Chance must not explain it."""

FIRST_PAUSE_STEPS, LONGEST_PAUSE_STEPS = 512, 16_384


class CollapseAlarm:
    """Compares the likeliest next token of late with the drafter's history and its provenance."""

    def __init__(self) -> None:
        self.num_alarms = 0
        self.reason: str | None = None
        """Why the drafter is not asked now, or None."""
        self._recent: deque[bool] = deque(maxlen=RECENT)
        self._history = [0.0, 0.0]
        self._expected: float | None = None
        self._in_a_row = 0
        self._pause_left = 0

    def expect(self, rate: float | None) -> None:
        """Takes over new weights: what they were is no measure any more.

        Args:
            rate: share of likeliest next tokens that came true where they were trained; None if nobody knows.
        """
        self._expected = rate
        self._recent.clear()
        self._history = [0.0, 0.0]
        self._in_a_row = self._pause_left = 0
        self.reason = None

    @property
    def allows(self) -> bool:
        """Whether the drafter may be asked."""
        return self._pause_left == 0

    @property
    def rate(self) -> float | None:
        """Share of the latest guesses that came true."""
        return sum(self._recent) / len(self._recent) if self._recent else None

    def pass_step(self) -> None:
        """Lets a step go by; after a pause the drafter is tried again."""
        if self._pause_left:
            self._pause_left -= 1
            if self._pause_left == 0:
                self.reason = None
                self._recent.clear()

    def record(self, *, came_true: bool) -> str | None:
        """Adds one guess.

        Returns:
            What happened, if this one tells a collapse.
        """
        if not self.allows:
            return None
        self._recent.append(came_true)
        if len(self._recent) < RECENT:
            return None
        rate = sum(self._recent) / RECENT
        for share, reference, num_seen, whose in (
            (LEAST_SHARE, self._past_rate(), self._history[0], "before"),
            (LEAST_SHARE_OF_PROVENANCE, self._expected, MEMORY, "where it was trained"),
        ):
            if reference is not None and rate < share * reference and _is_no_chance(rate, reference, num_seen):
                return self._raise(
                    f"{rate:.0%} of its likeliest next tokens come true, {reference:.0%} did {whose}; it may not be "
                    "this target's, or the text changed"
                )
        self._in_a_row = 0
        self._remember(self._recent.popleft())
        return None

    def _past_rate(self) -> float | None:
        seen, hits = self._history
        return hits / seen if seen >= RECENT else None

    def _remember(self, came_true: bool) -> None:
        fading = min(1.0, MEMORY / (self._history[0] + 1))
        self._history = [fading * (self._history[0] + 1), fading * (self._history[1] + came_true)]

    def _raise(self, reason: str) -> str:
        self.num_alarms += 1
        self._pause_left = min(FIRST_PAUSE_STEPS << min(self._in_a_row, 16), LONGEST_PAUSE_STEPS)
        self._in_a_row += 1
        self.reason = reason
        return f"{reason}; it is left alone for {self._pause_left} steps, then tried again"


def _is_no_chance(rate: float, reference: float, num_seen: float) -> bool:
    deviation = math.sqrt(reference * (1 - reference) * (1 / RECENT + 1 / num_seen))
    return reference - rate > DEVIATIONS * deviation
