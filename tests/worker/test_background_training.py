"""Training beside serving changes no token and nothing of the target, whatever happens to either."""

import pytest

from engine import EngineJob, run_engine
from worker.cases import ALWAYS, LEARNED_ALONE, TINY_ENGINE
from worker.test_losslessness_tiny import assert_same_tokens


@pytest.mark.slow
def test_training_publishing_and_failing_change_no_token(tiny_llama, batches, without_drafts, drafters, tmp_path):
    trained, untrained = drafters
    job = EngineJob(
        tiny_llama,
        batches[:4],
        {
            "method": "tlt",
            "drafter": untrained,
            "train": {"mode": "on", "checkpoint_dir": str(tmp_path / "kept")},
            "adaptive": ALWAYS,
        },
        {**TINY_ENGINE, "worker_extension_cls": "worker.extensions.TrainingObserver"},
        calls=[
            (0, 1, "remember_target", []),
            (1, 2, "wait_for_steps", [3]),
            (1, 4, "publish_often", [untrained, trained, 25]),
            (1, 6, "wait_for_steps", [3]),
            (1, 9, "tlt_target_updated", []),
            (2, 2, "tlt_train", ["off"]),
            (2, 4, "tlt_train", ["on"]),
            (2, 6, "sleep", [1]),
            (2, 7, "wake_up", []),
            (2, 8, "sleep", [2]),
            (2, 9, "wake_up", [["weights"]]),
            (2, 12, "wait_for_steps", [2]),
            (3, 4, "check_target", []),
            (3, 5, "break_training", []),
        ],
    )
    result = run_engine(job)
    assert_same_tokens(result, without_drafts, batches[:4])
    training = result.status["training"]
    assert result.status["drafter_failures"] == 0
    assert result.status["drafter_version"] >= 50
    assert result.status["target_version"] == 1
    assert result.status["sources"]["learned"]["accepted"] > 5
    assert training["last_error"] == "RuntimeError('broken by a test')"
    assert 1 <= training["failures"] <= 8
    assert training["buffer"]["samples"] > 10
    assert training["buffer"]["held_out_samples"] > 0
    assert result.log.count("serving goes on") >= 1
    for name in ("trainer.samples", "trainer.recording"):
        assert result.status["memory"][name]["bytes"] <= result.status["memory"][name]["cap"]


@pytest.mark.slow
def test_what_was_kept_is_gone_on_with(tiny_llama, batches, without_drafts, tmp_path):
    """The default drafter learns from nothing; a second engine drafts with what the first one left."""
    kept = tmp_path / "kept"
    settings = {"method": "tlt", "adaptive": ALWAYS, "train": {"mode": "on", "checkpoint_dir": str(kept)}}
    observed = {**TINY_ENGINE, "worker_extension_cls": "worker.extensions.TrainingObserver"}
    again = [batches[0]] * 3
    calls = [(1, 2, "learn_by_heart", []), (2, 2, "wait_for_version", [1])]
    first = run_engine(EngineJob(tiny_llama, again, settings, observed, calls=calls))
    assert_same_tokens(first, without_drafts, [batches[0]])
    assert (kept / "drafter.safetensors").exists()
    assert first.status["training"]["checkpoints"]["failed"] == 0
    second = run_engine(EngineJob(tiny_llama, [batches[0]], settings, observed))
    assert_same_tokens(second, without_drafts, [batches[0]])
    assert second.status["sources"]["learned"]["draft_tokens"] > 0, "from the first step on"


@pytest.mark.slow
def test_an_external_trainer_pushes_through_vllms_own_calls(tiny_llama, batches, without_drafts, drafters):
    trained, untrained = drafters
    job = EngineJob(
        tiny_llama,
        batches[:2],
        {"method": "tlt", "drafter": untrained, **LEARNED_ALONE, "train": {"enabled": False}},
        {**TINY_ENGINE, "worker_extension_cls": "worker.extensions.ExternalTrainer"},
        calls=[
            (0, 2, "use_file_transfer", []),
            (0, 4, "push_half", [trained]),
            (0, 5, "push_drafter", [untrained, 3, False]),
            (0, 6, "push_drafter", [trained, 3]),
        ],
    )
    result = run_engine(job)
    assert_same_tokens(result, without_drafts, batches[:2])
    assert result.status["drafter_version"] == 1
    assert result.status["target_version"] == 0, "the target did not change"
    assert result.status["acceptance_length"] > 1.2, "the drafter that was pushed drafts"
