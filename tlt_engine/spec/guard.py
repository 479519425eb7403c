"""Leaves alone for a while what failed, longer each time it fails again."""

FIRST_PAUSE_STEPS = 8
LONGEST_PAUSE_STEPS = 1024


class Guard:
    """Counts the failures of one drafter and says when it may be asked again."""

    def __init__(self) -> None:
        self.num_failures = 0
        self._in_a_row = 0
        self._pause_left = 0

    @property
    def is_open(self) -> bool:
        """Whether it may be asked."""
        return self._pause_left == 0

    def pass_step(self) -> None:
        """Lets one step of a pause go by."""
        self._pause_left = max(0, self._pause_left - 1)

    def succeed(self) -> None:
        """Notes that it drafted; the next pause is short again."""
        self._in_a_row = 0

    def fail(self) -> int | None:
        """Notes a failure and begins a pause.

        Returns:
            The steps of the pause if it is the first failure in a row, which is worth a line in the log; else None.
        """
        self.num_failures += 1
        self._in_a_row += 1
        self._pause_left = min(FIRST_PAUSE_STEPS << min(self._in_a_row - 1, 16), LONGEST_PAUSE_STEPS)
        return self._pause_left if self._in_a_row == 1 else None

    def reset(self) -> None:
        """Forgets failures: there are new weights."""
        self._in_a_row = self._pause_left = 0
