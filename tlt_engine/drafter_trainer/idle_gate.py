"""Whether training may run now: the states BUSY, IDLE and TRAINING of the paper, inside one engine.

Source: the Worker Coordinator of TLT (arXiv:2511.16665), whose unit is a worker; here it is the time between steps.
"""

import enum
import threading
import time
from collections import deque
from collections.abc import Callable
from statistics import median

IDLE_AFTER_STEPS = 3.0
"""The engine is idle if no step began for as long as so many steps take."""

IDLE_AFTER_S = 0.05
"""And at least for so long."""


class Occupancy(enum.Enum):
    """What the engine is doing."""

    BUSY = "busy"
    """More requests than leave time to spare, or a prefill."""
    LOW = "low"
    """Few requests decode."""
    IDLE = "idle"
    """No step is under way or due."""


class IdleGate:
    """Knows the engine's occupancy from its steps; the step path writes, the trainer's thread reads."""

    def __init__(self, max_running: int, clock: Callable[[], float] = time.perf_counter) -> None:
        """Starts idle.

        Args:
            max_running: with more requests in a step than these, the engine is busy.
            clock: seconds.
        """
        self.mode = "auto"
        self._max_running = max_running
        self._clock = clock
        self._is_in_step = False
        self._last_end = clock() - 3600.0
        self._occupancy = Occupancy.IDLE
        self._step_seconds: deque[float] = deque(maxlen=32)
        self._began = 0.0
        self._open_seconds = 0.0
        self._counted_until = clock()
        self._holds = 0
        self._changed = threading.Condition()

    def begin_step(self, num_running: int, is_decode_only: bool) -> None:
        """Notes that a step began.

        Args:
            num_running: requests in it.
            is_decode_only: whether no prompt is computed.
        """
        self._began = self._clock()
        self._count(self._began)
        self._is_in_step = True
        self._occupancy = Occupancy.LOW if is_decode_only and num_running <= self._max_running else Occupancy.BUSY

    def end_step(self) -> float:
        """Notes that the step under way ended, and returns its seconds."""
        now = self._clock()
        self._count(now)
        seconds = now - self._began
        if self._is_in_step:
            self._step_seconds.append(seconds)
        self._is_in_step = False
        self._last_end = now
        return seconds

    @property
    def occupancy(self) -> Occupancy:
        """What the engine is doing now."""
        if self._is_in_step or self._clock() - self._last_end <= self._patience():
            return self._occupancy
        return Occupancy.IDLE

    def open_seconds(self) -> float:
        """Returns the seconds since the start in which the engine was not busy, whether anybody trained or not."""
        now = self._clock()
        return self._open_seconds + self._not_busy(now)

    @property
    def is_open(self) -> bool:
        """Whether a piece of training may start."""
        if self._holds or self.mode == "off":
            return False
        return self.mode == "on" or self.occupancy is not Occupancy.BUSY

    def hold(self) -> None:
        """Closes the gate until ``release``, whatever the engine does; holds add up."""
        with self._changed:
            self._holds += 1

    def release(self) -> None:
        """Takes one ``hold`` back."""
        with self._changed:
            self._holds -= 1
            self._changed.notify_all()

    def _patience(self) -> float:
        """Returns the seconds without a step after which the engine is idle."""
        if not self._step_seconds:
            return IDLE_AFTER_S
        return max(IDLE_AFTER_S, IDLE_AFTER_STEPS * median(tuple(self._step_seconds)))

    def _count(self, now: float) -> None:
        self._open_seconds += self._not_busy(now)
        self._counted_until = now

    def _not_busy(self, now: float) -> float:
        """Returns the seconds since the last count that were not busy."""
        start = self._counted_until
        if self._occupancy is Occupancy.BUSY:
            if self._is_in_step:
                return 0.0
            start = max(start, self._last_end + self._patience())
        return max(0.0, now - start)

    @property
    def is_held(self) -> bool:
        """Whether somebody holds the gate closed."""
        return self._holds > 0
