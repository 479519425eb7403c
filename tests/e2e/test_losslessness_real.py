"""SmolLM2-135M in float32: 64 prompts, batch 16, chunked prefill, cached prefixes: same tokens, fewer steps."""

import os

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.prompts import ROLLOUT_TASKS, make_prompts
from engine import EngineJob, run_engine
from tlt_engine.spec.noise import gumbel_noise

pytestmark = pytest.mark.e2e

NUM_PROMPTS = 64
MAX_TOKENS = 200
ENGINE = {"max_num_seqs": 16, "max_num_batched_tokens": 160, "max_model_len": 1024, "block_size": 128}
LARGEST_GAP = 1e-4
"""Logits closer than this may change places with the shape of a matrix product; a larger gap is a fault of ours."""

ALL_CORES = {"OMP_NUM_THREADS": str(os.cpu_count())}

NUM_SAMPLED = 32
"""Prompts of the sampled batches; 'make test-full' takes them all."""

KINDS = {
    "temperature 1": {"temperature": 1.0},
    "top_p": {"temperature": 1.0, "top_p": 0.9},
    "penalties": {"temperature": 0.8, "repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.1},
    "min_p": {"temperature": 1.0, "min_p": 0.05},
    "logit_bias": {"temperature": 1.0, "logit_bias": {"28": 3.0, "198": -100.0}},
}


@pytest.fixture(scope="session")
def prompts(model):
    """Single questions, and questions with others before them, so that lengths run from 60 to 700 tokens."""
    single = make_prompts(model, ROLLOUT_TASKS, NUM_PROMPTS)
    return [sum(single[i - i % 5 : i + 1], [])[-700:] if i % 4 == 3 else single[i] for i in range(NUM_PROMPTS)]


@pytest.fixture(scope="session")
def batches(prompts):
    greedy = {"max_tokens": MAX_TOKENS, "detokenize": False, "temperature": 0.0, "logprobs": 2}
    return {
        "greedy": {"prompts": prompts, "params": greedy},
        "temperature 1": sampled_batch(prompts[:NUM_SAMPLED], [KINDS["temperature 1"]]),
        "processors": sampled_batch(prompts[:NUM_SAMPLED], list(KINDS.values())[1:]),
    }


def sampled_batch(prompts, kinds):
    base = {"max_tokens": MAX_TOKENS, "detokenize": False}
    params = [{**base, **kinds[i % len(kinds)], "seed": i} for i in range(len(prompts))]
    return {"prompts": prompts, "params": params}


def run_tlt(model, batches, **options):
    return run_engine(EngineJob(model, batches, {"method": "tlt", **options}, ENGINE, ALL_CORES))


@pytest.fixture(scope="session")
def with_drafts(model, batches):
    return run_tlt(model, list(batches.values()))


def assert_equal_or_tied(got, want):
    for prompt, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        if mine[0]["token_ids"] == theirs[0]["token_ids"]:
            continue
        pairs = enumerate(zip(mine[0]["token_ids"], theirs[0]["token_ids"], strict=False))
        place = next((i for i, (a, b) in pairs if a != b), None)
        assert place is not None, f"prompt {prompt}: one output is a prefix of the other"
        top = sorted(theirs[0]["logprobs"][place].values(), reverse=True)
        gap = top[0] - top[1]
        print(  # noqa: T201 - pytest shows it if the assertion fails
            f"prompt {prompt} differs first at output token {place}; gap of the top two logits: {gap:.2e}"
        )
        assert gap < LARGEST_GAP


def test_greedy_tokens_are_stocks(model, batches, with_drafts):
    stock = run_engine(EngineJob(model, [batches["greedy"]], None, ENGINE, ALL_CORES))
    assert_equal_or_tied(with_drafts.batches[0], stock.batches[0])
    assert with_drafts.status["acceptance_length"] > 1.3


def test_sampled_tokens_are_those_without_drafts(model, batches, with_drafts):
    sampled = [batches["temperature 1"], batches["processors"]]
    without = run_tlt(model, sampled, drafter="none")
    assert with_drafts.token_ids(1) == without.token_ids(0)
    assert with_drafts.token_ids(2) == without.token_ids(1)
    assert with_drafts.free_blocks[0] == with_drafts.free_blocks[1]


def test_sampled_tokens_win_by_the_logits_of_transformers(model, prompts, with_drafts):
    """An opinion that shares no code with vLLM: each token has the largest sum of logit and noise."""
    target = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for seed, prompt in enumerate(prompts[:8]):
        token_ids = with_drafts.token_ids(1)[seed][0]
        with torch.inference_mode():
            logits = target(torch.tensor([prompt + token_ids[:-1]])).logits[0, len(prompt) - 1 :].double().numpy()
        for position, token_id in enumerate(token_ids):
            scores = logits[position] + gumbel_noise(seed, position, np.arange(logits.shape[1]))
            assert scores.max() - scores[token_id] < LARGEST_GAP, f"prompt {seed}, output token {position}"


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_every_prompt_with(model, prompts, kind):
    batch = sampled_batch(prompts, [KINDS[kind]])
    with_drafts = run_tlt(model, [batch])
    assert with_drafts.token_ids(0) == run_tlt(model, [batch], drafter="none").token_ids(0)
    assert with_drafts.status["accepted_draft_tokens"] > 0
