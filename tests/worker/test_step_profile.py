"""The start-up profile: each small row count, the fastest of its rounds, within a time limit and on all ranks alike."""

from types import SimpleNamespace

import pytest
import torch

from tlt_engine.worker import step_profile


class Clock:
    """A clock that only dummy steps move."""

    def __init__(self):
        self.now = 0.0
        self.steps = []

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(step_profile, "time", clock)
    monkeypatch.setattr(step_profile, "get_tp_group", lambda: SimpleNamespace(world_size=1))
    return clock


def runner(clock, seconds, max_num_tokens=2048):
    """A runner whose steps take what ``seconds(rows, how many before)`` says; logits take a tenth of it."""

    def dummy_run(rows, **options):
        clock.now += 0.9 * seconds(rows, len(clock.steps))
        return torch.zeros(rows + 3, 2), None

    def compute_logits(hidden_states):
        clock.now += 0.1 * seconds(len(hidden_states), len(clock.steps))
        clock.steps.append(len(hidden_states))

    return SimpleNamespace(
        _dummy_run=dummy_run, model=SimpleNamespace(compute_logits=compute_logits), max_num_tokens=max_num_tokens
    )


def test_each_small_size_has_the_time_of_its_fastest_round(clock):
    slow_first_rounds = runner(clock, lambda rows, before: 1e-3 * rows * (3 if before < 60 else 1))
    profile = step_profile.measure_step_profile(slow_first_rounds, 1000)
    assert sorted(profile) == [*range(1, 18), 20, 24, 28, 32, 40, 48, 64, 96, 128]
    assert profile == pytest.approx({rows: 1e-3 * rows for rows in profile})


def test_no_size_above_what_a_step_may_hold(clock):
    assert max(step_profile.measure_step_profile(runner(clock, lambda *_: 1e-3, max_num_tokens=30), 1000)) == 28
    assert sorted(step_profile.measure_step_profile(runner(clock, lambda *_: 1e-3), 1)) == [1]


def test_a_large_model_is_measured_at_powers_of_two_first_and_within_the_limit(clock):
    profile = step_profile.measure_step_profile(runner(clock, lambda *_: 1.0), 1000)
    assert sorted(profile) == [1, 2, 4, 8, 16, 32, 64]
    assert clock.now <= step_profile.TIME_LIMIT_SECONDS + 2.0


def test_ranks_stop_when_the_first_one_says_so(clock, monkeypatch):
    answers = iter([False] * 9 + [True])
    group = SimpleNamespace(world_size=2, broadcast_object=lambda _: next(answers))
    monkeypatch.setattr(step_profile, "get_tp_group", lambda: group)
    assert len(step_profile.measure_step_profile(runner(clock, lambda *_: 100.0), 1000)) == 10
