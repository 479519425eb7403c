"""A training on disk is whole or not there, whatever happens to the writer."""

import multiprocessing
import os
import random
import time

import pytest
import torch

from tlt_engine.drafter.whole_file import PREFIX
from tlt_engine.drafter_trainer.checkpoints import KEEP, TrainingCheckpoints


def write_for_ever(folder, ready):
    """Goes on from what an earlier writer left."""
    checkpoints = TrainingCheckpoints(folder)
    number = (checkpoints.load() or {"number": 0})["number"]
    ready.set()
    while True:
        number += 1
        weights = torch.full((300_000,), float(number))
        while not checkpoints.save(number, {"number": number, "weights": weights, "steps": [number] * 10}):
            pass


def write(checkpoints, *numbers):
    for number in numbers:
        while not checkpoints.save(number, {"number": number, "weights": torch.full((100,), float(number))}):
            time.sleep(0.001)


def test_the_newest_is_read_again_and_few_are_kept(tmp_path):
    checkpoints = TrainingCheckpoints(tmp_path / "made")
    assert checkpoints.load() is None
    write(checkpoints, *range(1, 12))
    checkpoints.close()
    assert TrainingCheckpoints(tmp_path / "made").load()["number"] == 11
    assert len(list((tmp_path / "made").iterdir())) == KEEP
    assert checkpoints.num_written == 11


def test_a_damaged_state_costs_the_time_since_the_one_before(tmp_path, caplog):
    checkpoints = TrainingCheckpoints(tmp_path)
    write(checkpoints, 1, 2)
    checkpoints.close()
    newest = sorted(tmp_path.glob("training-*"))[-1]
    newest.write_bytes(newest.read_bytes()[:-200])
    assert TrainingCheckpoints(tmp_path).load()["number"] == 1
    assert newest.name in caplog.text


@pytest.mark.parametrize("problem", ["a file is in the way", "the disk is full"])
def test_what_cannot_be_written_costs_a_warning(tmp_path, caplog, monkeypatch, problem):
    if problem == "a file is in the way":
        (tmp_path / "place").write_text("")
    else:
        monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    checkpoints = TrainingCheckpoints(tmp_path / "place")
    write(checkpoints, 1, 2, 3)
    checkpoints.close()
    assert (checkpoints.num_written, checkpoints.num_failed) == (0, 3)
    assert caplog.text.count("it goes on without") == 1
    assert not list(tmp_path.glob("place/*"))


def test_a_training_cannot_be_saved_twice_at_once(tmp_path):
    checkpoints = TrainingCheckpoints(tmp_path)
    blocked = []
    assert checkpoints.save(1, {"number": 1}, also=lambda: (time.sleep(0.2), blocked.append(1)))
    assert not checkpoints.save(2, {"number": 2})
    checkpoints.close()
    assert blocked
    assert TrainingCheckpoints(tmp_path).load() == {"number": 1}


def test_a_killed_writer_leaves_a_whole_state(tmp_path):
    """Twenty kills at random moments; each next start reads a state that is whole and never an older one."""
    rng = random.Random(5)
    fork = multiprocessing.get_context("fork")
    newest = 0
    for _ in range(20):
        ready = fork.Event()
        writer = fork.Process(target=write_for_ever, args=(tmp_path, ready))
        writer.start()
        assert ready.wait(30)
        time.sleep(rng.uniform(0.0, 0.15))
        writer.kill()
        writer.join()
        state = TrainingCheckpoints(tmp_path).load()
        assert not list(tmp_path.glob(f"{PREFIX}*")), "what was left half written is swept up"
        if state is not None:
            assert state["weights"].eq(state["number"]).all()
            assert state["steps"] == [state["number"]] * 10
            assert state["number"] >= newest
            newest = state["number"]
    assert newest > 0
