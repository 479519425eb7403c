"""A profile is measured once for a model and a machine, and again when it is old, damaged or another's."""

import time
from types import SimpleNamespace

import pytest

from tlt_engine.worker import profile_cache

PROFILE = {1: 0.03, 2: 0.04}


class Measure:
    def __init__(self):
        self.times = 0

    def __call__(self):
        self.times += 1
        return PROFILE


@pytest.fixture
def measure(monkeypatch, tmp_path):
    monkeypatch.setattr(profile_cache.envs, "VLLM_CACHE_ROOT", str(tmp_path))
    group(monkeypatch, world_size=1, is_first_rank=True)
    return Measure()


def group(monkeypatch, **properties):
    monkeypatch.setattr(profile_cache, "get_tp_group", lambda: SimpleNamespace(**properties))


def config(model="m"):
    return SimpleNamespace(
        model_config=SimpleNamespace(model=model, quantization=None, enforce_eager=True, compute_hash=lambda: model),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )


def test_it_is_measured_once(measure):
    assert profile_cache.kept_or_measured(config(), 64, measure) == PROFILE
    assert profile_cache.kept_or_measured(config(), 64, measure) == PROFILE
    assert measure.times == 1
    profile_cache.kept_or_measured(config("other"), 64, measure)
    profile_cache.kept_or_measured(config(), 32, measure)
    assert measure.times == 3


def test_what_is_old_or_damaged_is_measured_again(measure, tmp_path, monkeypatch):
    profile_cache.kept_or_measured(config(), 64, measure)
    (file,) = (tmp_path / "tlt_engine").iterdir()
    file.write_text("{half")
    profile_cache.kept_or_measured(config(), 64, measure)
    assert measure.times == 2
    later = time.time() + profile_cache.LASTS_SECONDS + 1
    monkeypatch.setattr(profile_cache.time, "time", lambda: later)
    profile_cache.kept_or_measured(config(), 64, measure)
    assert measure.times == 3


def test_a_folder_that_cannot_be_written_costs_the_next_start_only(measure, tmp_path):
    (tmp_path / "tlt_engine").write_text("a file")
    assert profile_cache.kept_or_measured(config(), 64, measure) == PROFILE


def test_ranks_measure_together_or_not_at_all(measure, monkeypatch):
    profile_cache.kept_or_measured(config(), 64, measure)
    group(monkeypatch, world_size=2, is_first_rank=False, broadcast_object=lambda _: PROFILE)
    assert profile_cache.kept_or_measured(config(), 64, measure) == PROFILE
    assert measure.times == 1, "the first rank has one"
    group(monkeypatch, world_size=2, is_first_rank=False, broadcast_object=lambda mine: mine)
    profile_cache.kept_or_measured(config(), 64, measure)
    assert measure.times == 2, "the first rank has none, whatever this one could read"
