"""The thread that trains: lowest priority, on cores the engine leaves, one piece at a time while the gate is open.

Whatever goes wrong in it is counted and logged, and tried again later; serving never hears of it.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import ThreadpoolController
from vllm.logger import init_logger

from tlt_engine.drafter_trainer.governor import Governor
from tlt_engine.drafter_trainer.idle_gate import IdleGate, Occupancy

logger = init_logger(f"vllm.{__name__}")

CLOSED_WAIT_S = 0.01
NO_WORK_WAIT_S = 0.05
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 1.0, 300.0
MOST_FAILURES_IN_A_ROW = 8
JOIN_WITHIN_S = 5.0


class TrainingThread:
    """Calls ``advance`` whenever the gate is open and the governor has rested."""

    def __init__(
        self, advance: Callable[[], bool], gate: IdleGate, governor: Governor, *, device: torch.device, num_engine: int
    ) -> None:
        """Does not start yet.

        Args:
            advance: does one piece of work; False if there is none.
            gate: whether it may.
            governor: how much it may.
            device: where training runs.
            num_engine: threads that the engine computes with.
        """
        self.num_pieces = 0
        self.num_failures = 0
        self.trained_seconds = 0.0
        self.is_computing = False
        self.last_error = ""
        self._advance = advance
        self._gate = gate
        self._governor = governor
        self._device = device
        self._num_engine = num_engine
        self._cores = sorted(os.sched_getaffinity(0) | os.sched_getaffinity(os.getppid()))
        self._piece = threading.Lock()
        self._stops = threading.Event()
        self._thread = self._new_thread()

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether it runs; not after it failed too often."""
        return self._thread.is_alive()

    def revive(self) -> None:
        """Starts it again if it gave up."""
        if not self._thread.is_alive() and not self._stops.is_set():
            self._thread = self._new_thread()
            self._thread.start()

    def close(self) -> None:
        """Ends the thread after the piece under way; it is left behind if that takes longer than 5 s."""
        self._stops.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_WITHIN_S)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keeps the thread from working; waits for the piece under way to end."""
        self._gate.hold()
        try:
            with self._piece:
                yield
        finally:
            self._gate.release()

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._run, name="tlt-trainer", daemon=True)

    def _run(self) -> None:
        self._step_back()
        failures_in_a_row = 0
        while not self._stops.is_set():
            if not self._gate.is_open:
                self._stops.wait(CLOSED_WAIT_S)
                continue
            try:
                worked = self._work()
                failures_in_a_row = 0
            except Exception as error:  # noqa: BLE001 - memory, a user's weights, a driver: serving goes on
                failures_in_a_row += 1
                if not self._survive(error, failures_in_a_row):
                    return
                continue
            if not worked:
                self._stops.wait(NO_WORK_WAIT_S)

    def _work(self) -> bool:
        with self._piece:
            if not self._gate.is_open:  # it may have closed while the lock was waited for
                return True
            started = time.perf_counter()
            is_alone = self._gate.occupancy is Occupancy.IDLE
            self._use_threads(len(self._cores) if is_alone else max(1, len(self._cores) - self._num_engine))
            self.is_computing = True
            try:
                worked = self._advance()
            finally:
                self.is_computing = False
            seconds = time.perf_counter() - started
        if worked:
            self.num_pieces += 1
            self.trained_seconds += seconds
        self._rest(self._governor.rest_after(seconds) if worked else 0.0)
        return worked

    def _rest(self, seconds: float) -> None:
        """Rests while requests decode; an idle engine needs none."""
        deadline = time.perf_counter() + seconds
        while not self._stops.is_set() and self._gate.occupancy is not Occupancy.IDLE:
            left = deadline - time.perf_counter()
            if left <= 0:
                return
            self._stops.wait(min(left, NO_WORK_WAIT_S))

    def _survive(self, error: Exception, failures_in_a_row: int) -> bool:
        self.num_failures += 1
        self.last_error = repr(error)
        if failures_in_a_row >= MOST_FAILURES_IN_A_ROW:
            logger.warning("Training failed %d times in a row and stays off: %r", failures_in_a_row, error)
            return False
        wait = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** (failures_in_a_row - 1))
        logger.warning("The drafter's training failed, serving goes on; tried again in %.0f s: %r", wait, error)
        self._stops.wait(wait)
        return True

    def _step_back(self) -> None:
        """Gives every other thread of the machine precedence, and leaves the engine's cores to it where it can."""
        try:
            os.sched_setaffinity(0, self._cores)  # the engine's threads are bound, and this one was born of one
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        except OSError as error:
            logger.warning("The trainer runs at normal priority: %s", error)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            torch.cuda.set_stream(torch.cuda.Stream(self._device, priority=0))  # type: ignore[no-untyped-call]

    def _use_threads(self, num_threads: int) -> None:
        """Sets the size of this thread's own OpenMP team; ``torch.set_num_threads`` would set the engine's, too."""
        torch.get_num_threads()  # initialises the thread's number, which would undo ours later
        self._controller.limit(limits=num_threads)

    @property
    def _controller(self) -> ThreadpoolController:
        if not hasattr(self, "_openmp"):
            self._openmp = ThreadpoolController().select(user_api="openmp")
        return self._openmp
