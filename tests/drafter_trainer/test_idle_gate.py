"""Training runs when there is time to spare, and decode steps bear no more of it than they should."""

import random

import pytest

from tlt_engine.drafter_trainer.governor import LEAST_DUTY, PROBE_SHARE, Governor
from tlt_engine.drafter_trainer.idle_gate import IdleGate, Occupancy


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def step(gate, clock, num_running, *, is_decode_only=True, seconds=0.04):
    gate.begin_step(num_running, is_decode_only)
    clock.now += seconds
    during = gate.occupancy, gate.is_open
    assert gate.end_step() == pytest.approx(seconds)
    return during


def test_the_gate_follows_the_steps():
    clock = Clock()
    gate = IdleGate(max_running=2, clock=clock)
    assert gate.occupancy is Occupancy.IDLE
    assert gate.is_open
    assert step(gate, clock, 2) == (Occupancy.LOW, True)
    assert step(gate, clock, 3) == (Occupancy.BUSY, False)
    assert not gate.is_open, "between two steps of a busy engine"
    assert step(gate, clock, 1, is_decode_only=False) == (Occupancy.BUSY, False)
    assert step(gate, clock, 1) == (Occupancy.LOW, True)


def test_an_engine_without_steps_becomes_idle_and_is_busy_again_at_once():
    clock = Clock()
    gate = IdleGate(max_running=1, clock=clock)
    for _ in range(4):
        step(gate, clock, 5, seconds=0.1)
    clock.now += 0.2
    assert gate.occupancy is Occupancy.BUSY
    clock.now += 0.2
    assert gate.occupancy is Occupancy.IDLE
    gate.begin_step(5, True)
    assert not gate.is_open


def test_time_that_is_not_busy_is_counted():
    clock = Clock()
    gate = IdleGate(max_running=1, clock=clock)
    clock.now += 5  # idle
    step(gate, clock, 1, seconds=0.1)
    step(gate, clock, 4, seconds=0.1)
    step(gate, clock, 4, is_decode_only=False, seconds=0.1)
    assert gate.open_seconds() == pytest.approx(5.1)
    clock.now += 0.2  # still thought to be busy
    assert gate.open_seconds() == pytest.approx(5.1)
    clock.now += 1.1
    assert gate.open_seconds() == pytest.approx(6.1)
    step(gate, clock, 1, seconds=0.1)
    assert gate.open_seconds() == pytest.approx(6.2)


def test_modes_and_holds():
    clock = Clock()
    gate = IdleGate(max_running=1, clock=clock)
    gate.begin_step(9, True)
    gate.mode = "on"
    assert gate.is_open
    gate.mode = "off"
    gate.end_step()
    clock.now += 60
    assert not gate.is_open
    gate.mode = "auto"
    gate.hold()
    gate.hold()
    gate.release()
    assert not gate.is_open
    gate.release()
    assert gate.is_open


def simulate(slowdown, *, num_steps=400, seed=0):
    """Steps of several sizes, some of them beside training, as often as the governor says."""
    rng = random.Random(seed)
    governor = Governor(max_slowdown=0.05)
    paid = base = 0.0
    training_left = resting_left = 0.0
    for number in range(num_steps):
        rows = rng.choice((4, 8))
        seconds = 0.01 * rows * rng.uniform(0.97, 1.03)
        is_training = resting_left <= 0
        taken = seconds * (1 + slowdown * is_training)
        governor.record(taken / (0.01 * rows), is_training)
        if number > num_steps // 2:
            paid, base = paid + taken, base + seconds
        if is_training:
            training_left += taken
            if training_left > 0.5:
                resting_left, training_left = governor.rest_after(training_left), 0.0
        else:
            resting_left -= taken
    return governor, paid / base - 1


def test_training_that_is_not_felt_rests_just_enough_to_be_compared():
    governor, felt = simulate(0.0)
    assert governor.duty == pytest.approx(1 - PROBE_SHARE)
    assert abs(governor.slowdown) < 0.02
    assert felt < 0.01


@pytest.mark.parametrize("slowdown", [0.1, 0.3, 1.0])
def test_the_mean_slow_down_is_kept_within_the_bound(slowdown):
    governor, felt = simulate(slowdown)
    assert governor.slowdown == pytest.approx(slowdown, rel=0.2)
    assert governor.duty == pytest.approx(0.05 / slowdown, rel=0.25)
    assert felt < 0.075


def test_nothing_is_said_before_there_is_something_to_compare_with():
    governor = Governor(max_slowdown=0.05)
    for _ in range(50):
        governor.record(1.5, was_training=True)
    assert governor.slowdown == 0.0
    assert Governor(max_slowdown=1e-6).rest_after(1.0) <= 1.0 / LEAST_DUTY
