"""Features are the target's, whatever the scheduler did; and a learned drafter changes speed, never tokens."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine import EngineJob, run_engine
from stock_drafts import count_same_drafts
from tlt_engine.drafter.checkpoint import load_checkpoint
from worker.cases import LEARNED_ALONE, TINY_ENGINE, only
from worker.test_losslessness_tiny import assert_same_tokens

AUX_LAYERS = (1, 2)


@pytest.mark.slow
def test_recorded_features_are_those_of_transformers(tiny_llama, recorded, prompts):
    result, samples = recorded
    target = AutoModelForCausalLM.from_pretrained(tiny_llama)
    starts, lengths = set(), set()
    assert len(samples) == 3 * len(prompts)
    for sample in samples:
        batch, index = map(int, sample.req_id.partition("-")[0].split("."))
        sequence = result.batches[batch][index]
        start = sample.first_position
        if sequence:  # the aborted one has no output to compare with
            written = prompts[index] + sequence[0]["token_ids"]
            assert sample.token_ids.tolist() == written[start:-1]
            assert sample.num_prompt_tokens == len(prompts[index])
            with torch.no_grad():
                output = target.model(torch.tensor([written[:-1]]), output_hidden_states=True)
            features = torch.cat([output.hidden_states[layer][0] for layer in AUX_LAYERS], dim=-1)
            assert torch.allclose(sample.features, features[start:], atol=2e-3, rtol=1e-3), sample.req_id
            assert torch.allclose(sample.final_hidden, output.last_hidden_state[0, start:], atol=2e-3, rtol=1e-3)
        starts.add(start)
        lengths.add(len(sample))
    assert max(starts) >= 32, "no prefix came from the cache"
    assert max(lengths) > 128, "no prefill was chunked"
    assert result.status["kv_moves"] > 0, "no tree was accepted off its first path"


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["both", "learned"])
def test_a_learned_drafter_changes_no_token(run_tlt, batches, without_drafts, drafters, strategy):
    trained, _ = drafters
    result = run_tlt(batches, drafter=trained, adaptive=only(strategy))
    assert_same_tokens(result, without_drafts, batches)
    learned = result.status["sources"]["learned"]
    assert learned["accepted"] > 20
    assert result.status["drafter_failures"] == 0
    assert ("request" in result.status["sources"]) == (strategy == "both")
    for name in ("drafter.features", "drafter.keys", "drafter.weights", "prompt_lookup.suffix_trees"):
        assert name in result.status["memory"]


@pytest.mark.slow
def test_training_helps(run_tlt, batches, drafters):
    lengths = [
        run_tlt(batches[:1], drafter=drafter, train={"enabled": False}, **LEARNED_ALONE).status["acceptance_length"]
        for drafter in drafters
    ]
    assert lengths[0] > lengths[1] + 0.2, lengths


@pytest.mark.slow
def test_weights_swapped_in_mid_request_change_no_token(tiny_llama, batches, without_drafts, drafters):
    trained, untrained = drafters
    job = EngineJob(
        tiny_llama,
        batches[:3],
        {"method": "tlt", "drafter": untrained, **LEARNED_ALONE},
        TINY_ENGINE,
        calls=[(0, 9, "tlt_publish", [trained]), (1, 12, "tlt_publish", [untrained])],
    )
    result = run_engine(job)
    assert_same_tokens(result, without_drafts, batches[:3])
    assert result.status["drafter_failures"] == 0


@pytest.mark.slow
def test_the_first_rank_drafts_for_all(run_tlt, batches, without_drafts, drafters):
    """The target's embedding is divided between the ranks; the drafter runs on one of them and needs all of it."""
    two_ranks = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    settings = {"drafter": drafters[0], **LEARNED_ALONE}
    alone = run_tlt(batches[:1], train={"enabled": False}, **settings)
    result = run_tlt(batches[:1], engine={"tensor_parallel_size": 2}, environment=two_ranks, **settings)
    assert_same_tokens(result, without_drafts, batches[:1])
    assert result.status["memory"]["drafter.embedding"]["bytes"] > 0
    assert result.status["training"] is None
    assert "tensor parallelism" in result.status["training_refusal"]
    assert alone.status["acceptance_length"] > 1.3
    assert result.status["acceptance_length"] > alone.status["acceptance_length"] - 0.05
    assert result.status["drafter_failures"] == 0


@pytest.mark.slow
def test_weights_that_are_no_numbers_cost_drafts_only(tiny_llama, batches, without_drafts, drafters):
    job = EngineJob(
        tiny_llama,
        batches[:1],
        {"method": "tlt", "drafter": drafters[0], **LEARNED_ALONE},
        {**TINY_ENGINE, "worker_extension_cls": "worker.extensions.Spoiler"},
        calls=[(0, 5, "spoil_drafter", [])],
    )
    result = run_engine(job)
    assert_same_tokens(result, without_drafts, batches[:1])
    assert result.status["drafter_failures"] > 0
    assert result.log.count("numbers that are not finite") == 1


@pytest.mark.slow
def test_stock_vllm_drafts_the_same_tokens_from_an_export(tiny_llama, batches, recorded, drafters, tmp_path):
    checkpoint = load_checkpoint(Path(drafters[0]))
    same, compared = count_same_drafts(
        tiny_llama, checkpoint, batches[0], recorded[1], TINY_ENGINE, tmp_path / "eagle3"
    )
    assert compared >= 200
    assert same >= 0.99 * compared, (same, compared)  # ties in float32 may fall either way
