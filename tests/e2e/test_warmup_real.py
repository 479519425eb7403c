"""From prompts to a drafter of the real model, with the commands a user types."""

import json
import os
import re
import subprocess
import sys

import pytest
from transformers import AutoTokenizer

from engine import REPOSITORY, EngineJob, run_engine
from stock_drafts import count_same_drafts
from tlt_engine.drafter.checkpoint import load_checkpoint
from tlt_engine.drafter_trainer.sample_store import SampleStore
from tlt_engine.server.recording import chat_prompt

pytestmark = pytest.mark.e2e

QUESTIONS = ("What is {} plus 4?", "Name a word of {} letters.", "Count to {}.", "Is {} even?")


def tlt_engine(*arguments):
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    command = [sys.executable, "-m", "tlt_engine", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=600)


def test_warmup_then_inspect_then_doctor_then_stock(model, tmp_path):
    prompts = [{"prompt": question.format(number)} for number in range(1, 17) for question in QUESTIONS]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    warmup = ["warmup", model, "--data", tmp_path / "prompts.jsonl", "--tokens", 500, "--out", tmp_path / "drafter"]
    warmup += ["--max-tokens", 16, "--epochs", 2, "--draft-vocab-size", 1024, "--dtype", "float32"]
    result = tlt_engine(*warmup)
    assert result.returncode == 0, result.stderr[-3000:]
    losses = [float(loss) for loss in re.findall(r"loss (\S+),", result.stdout)]
    lengths = re.findall(r"acceptance length (\S+) \(by depth", result.stdout)
    assert len(lengths) == len(losses) + 1 >= 4, "an evaluation before training and several after"
    assert losses[-1] < 0.9 * losses[0], "nothing was learnt"  # 500 tokens: which ones depends on the machine
    assert [path.name for path in (tmp_path / "drafter").iterdir()] == ["drafter.safetensors"], "work was left behind"

    again = tlt_engine(*warmup)
    assert again.returncode == 1
    assert "holds a finished drafter; name another --out" in again.stderr

    inspected = tlt_engine("inspect", tmp_path / "drafter")
    assert f"length {max(lengths)}" in inspected.stdout
    assert "prompts.jsonl" in inspected.stdout

    doctor = tlt_engine("doctor", model, "--drafter", tmp_path / "drafter")
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr[-2000:]
    for line in ("llama, 30 layers", "features after layers 2, 15, 27", "whole, and made for", "prompts of our own"):
        assert line in doctor.stdout

    batch = {
        "prompts": [chat_prompt(AutoTokenizer.from_pretrained(model), entry["prompt"]) for entry in prompts[:8]],
        "params": {"temperature": 0.0, "max_tokens": 48, "ignore_eos": True, "detokenize": False},
    }
    record = {"method": "tlt", "drafter": "none", "record_samples": True}
    run_engine(EngineJob(model, [batch], record, samples_folder=str(tmp_path / "samples")))
    checkpoint = load_checkpoint(tmp_path / "drafter")
    samples = list(SampleStore(tmp_path / "samples"))
    same, compared = count_same_drafts(model, checkpoint, batch, samples, {}, tmp_path / "eagle3")
    assert compared >= 200
    assert same >= 0.99 * compared, (same, compared)  # ties in float32 may fall either way
