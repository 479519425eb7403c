"""An engine that is killed while it trains and keeps leaves what the next one goes on with."""

import random
import re
import time

import pytest

from engine import EngineJob, run_engine, started_engine
from tlt_engine.drafter.checkpoint import load_checkpoint
from tlt_engine.drafter.whole_file import PREFIX
from tlt_engine.drafter_trainer.checkpoints import TrainingCheckpoints
from worker.cases import ALWAYS, TINY_ENGINE

KEPT_WITHIN_S = 120


def newest_state(folder):
    """Version and number of steps of what is kept, if anything is; the drafter beside it must be whole as well."""
    state = TrainingCheckpoints(folder).load()
    assert not list(folder.glob("*.damaged"))
    if (folder / "drafter.safetensors").exists():
        load_checkpoint(folder)
    return (0, 0) if state is None else (state["drafter_version"], state["trainer"]["num_steps"])


def live_versions(log):
    return [int(version) for version in re.findall(r"Drafter version (\d+) is live", log.read_text())]


@pytest.mark.slow
@pytest.mark.parametrize("num_kills", [2, pytest.param(20, marks=pytest.mark.full)])
def test_a_killed_engine_leaves_a_whole_training(tiny_llama, batches, tmp_path, num_kills):
    kept = tmp_path / "kept"
    settings = {"method": "tlt", "adaptive": ALWAYS, "train": {"mode": "on", "checkpoint_dir": str(kept)}}
    observed = {**TINY_ENGINE, "worker_extension_cls": "worker.extensions.TrainingObserver"}
    num_batches = 500  # it serves, waits for steps of the trainer, and serves again until it is killed
    calls = [(0, 1, "publish_every_step", []), *((batch, 4, "wait_for_steps", [2]) for batch in range(1, num_batches))]
    job = EngineJob(tiny_llama, [batches[0]] * num_batches, settings, observed, calls=calls)
    rng = random.Random(11)
    version = steps = 0
    for _ in range(num_kills):
        with started_engine(job, tmp_path / "result", tmp_path / "log") as engine:
            deadline = time.monotonic() + KEPT_WITHIN_S
            while not (kept / f"training-{version + 1:08d}.pt").exists() or not live_versions(tmp_path / "log"):
                assert engine.exitcode is None, (tmp_path / "log").read_text()[-3000:]
                assert time.monotonic() < deadline, sorted(kept.glob("*"))
                time.sleep(0.01)
            time.sleep(rng.uniform(0.0, 1.0))
            engine.kill()
        assert live_versions(tmp_path / "log")[0] > version, "training went on from what was kept, not from nothing"
        before = version, steps
        version, steps = newest_state(kept)
        assert (version, steps) > before
        assert steps > before[1]
    last = run_engine(EngineJob(tiny_llama, [batches[0]], settings, observed))
    assert last.status["training"]["checkpoints"]["failed"] == 0
    assert last.status["sources"]["learned"]["draft_tokens"] > 0, "it drafts with what was kept from the first step on"
    assert not list(kept.glob(f"{PREFIX}*"))
