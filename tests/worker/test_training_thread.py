"""The thread works when it may, keeps still when it must, and whatever breaks in it stays in it."""

import os
import threading
import time

import pytest
import torch

from tlt_engine.drafter_trainer.governor import Governor
from tlt_engine.drafter_trainer.idle_gate import IdleGate
from tlt_engine.worker import training_thread
from tlt_engine.worker.training_thread import MOST_FAILURES_IN_A_ROW, TrainingThread


class Work:
    """Counts its pieces."""

    def __init__(self, seconds=0.002, errors=()):
        self.num_pieces = 0
        self.is_running = False
        self.about = {}
        self._seconds = seconds
        self._errors = list(errors)

    def __call__(self):
        self.is_running = True
        self.about = {
            "policy": os.sched_getscheduler(0),
            "grad": torch.is_grad_enabled(),
            "threads": torch.get_num_threads(),
        }
        time.sleep(self._seconds)
        self.is_running = False
        self.num_pieces += 1
        if self._errors:
            raise self._errors.pop(0)
        return True


@pytest.fixture
def started():
    threads = []

    def start(work, gate=None):
        thread = TrainingThread(work, gate or IdleGate(1), Governor(0.05), device=torch.device("cpu"), num_engine=1)
        threads.append(thread)
        thread.start()
        return thread

    yield start
    for thread in threads:
        thread.close()


def wait_until(is_true, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_it_works_at_the_lowest_priority_with_gradients_and_its_own_threads(started):
    work = Work()
    before = torch.get_num_threads(), os.sched_getscheduler(0)
    with torch.inference_mode():
        thread = started(work)
        wait_until(lambda: work.num_pieces > 3)
    assert work.about["policy"] == os.SCHED_IDLE
    assert work.about["grad"]
    assert (torch.get_num_threads(), os.sched_getscheduler(0)) == before, "the engine's threads are left alone"
    fresh = []
    other = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert fresh == [before[0]], "and so are those that it starts later"
    assert thread.num_pieces >= 3
    assert thread.trained_seconds > 0


def test_beside_decoding_it_computes_with_the_cores_that_are_left(started):
    work, gate = Work(), IdleGate(1)
    cores = len(os.sched_getaffinity(0))
    started(work, gate)
    wait_until(lambda: work.about.get("threads") == cores)
    gate.begin_step(1, True)
    wait_until(lambda: work.about["threads"] == max(1, cores - 1))


def test_no_piece_starts_once_the_gate_is_closed(started):
    work, gate = Work(), IdleGate(1)
    started(work, gate)
    wait_until(lambda: work.num_pieces > 3)
    gate.begin_step(2, True)
    wait_until(lambda: not work.is_running)
    done = work.num_pieces
    time.sleep(0.1)
    assert work.num_pieces <= done + 1, "the one that was about to end"
    gate.end_step()


def test_a_gate_that_closes_while_a_pause_is_waited_for_stays_closed(started):
    work, gate = Work(seconds=0.0), IdleGate(1)
    thread = started(work, gate)
    wait_until(lambda: work.num_pieces > 3)
    with thread._piece:
        done = work.num_pieces
        time.sleep(0.3)  # the thread has seen the gate open and waits for the lock
        gate.begin_step(2, True)
    time.sleep(0.1)
    assert work.num_pieces == done
    gate.end_step()


def test_while_it_is_paused_it_keeps_still(started):
    work = Work(seconds=0.05)
    thread = started(work)
    wait_until(lambda: work.is_running)
    with thread.paused(), thread_of_another_pause(thread):
        assert not work.is_running
        done = work.num_pieces
        time.sleep(0.2)
        assert work.num_pieces == done
    wait_until(lambda: work.num_pieces > done)


def thread_of_another_pause(thread):
    """Pauses may come from two sides, as a weight update during sleep."""
    other = threading.Thread(target=lambda: thread._gate.hold())
    other.start()
    other.join()

    class Release:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            thread._gate.release()

    return Release()


def test_what_breaks_is_counted_and_tried_again(started, monkeypatch):
    monkeypatch.setattr(training_thread, "FIRST_BACKOFF_S", 0.01)
    work = Work(errors=[RuntimeError("out of memory"), ValueError("again")])
    thread = started(work)
    wait_until(lambda: work.num_pieces > 6)
    assert thread.num_failures == 2
    assert thread.last_error == "ValueError('again')"


def test_what_breaks_every_time_stays_off(started, monkeypatch):
    monkeypatch.setattr(training_thread, "FIRST_BACKOFF_S", 0.001)
    work = Work(errors=[RuntimeError("broken")] * 100)
    thread = started(work)
    wait_until(lambda: not thread._thread.is_alive())
    assert thread.num_failures == work.num_pieces == MOST_FAILURES_IN_A_ROW


def test_it_ends_in_time_even_in_the_midst_of_a_back_off(started):
    thread = started(Work(errors=[RuntimeError("broken")] * 3))
    wait_until(lambda: thread.num_failures == 1)
    begun = time.monotonic()
    thread.close()
    assert time.monotonic() - begun < 5.0
    assert not thread._thread.is_alive()
