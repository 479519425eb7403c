"""The choice of strategies inside an engine: requests opt out, switching costs no token, and the status tells."""

import pytest

from engine import EngineJob, run_engine
from tlt_engine.spec.decision_log import read_decisions
from worker.cases import ALWAYS, MIXED, TINY_ENGINE, only, oracle
from worker.test_losslessness_tiny import assert_same_tokens


@pytest.mark.slow
def test_a_request_opts_out_or_caps_its_drafts(run_tlt, tiny_llama, batches, without_drafts, answers):
    params = batches[0]["params"]
    of_request = [{"tlt_max_draft_tokens": 0}, {"tlt_max_draft_tokens": 2}, {}, None]
    batch = {
        "prompts": batches[0]["prompts"],
        "params": [{**params, "extra_args": of_request[i % 4]} for i in range(len(batches[0]["prompts"]))],
    }
    settings = {"method": "tlt", **oracle(answers)}
    result = run_engine(EngineJob(tiny_llama, [batch], settings, TINY_ENGINE, traces_drafts=True))
    assert_same_tokens(result, without_drafts, batches[:1])
    most = [0, 0, 0, 0]
    for req_id, _, drafts in result.drafts:
        kind = int(req_id.partition("-")[0].split(".")[1]) % 4
        most[kind] = max(most[kind], len(drafts))
    assert most[0] == 0
    assert most[1] == 2
    assert most[2] > 2 and most[3] > 2


@pytest.mark.slow
def test_every_policy_emits_the_same_tokens_and_says_what_it_did(run_tlt, batches, without_drafts, drafters, tmp_path):
    few = [batches[0], batches[MIXED], batches[0]]
    expected = [without_drafts.token_ids(0), without_drafts.token_ids(MIXED), without_drafts.token_ids(0)]
    log = tmp_path / "decisions.jsonl"
    for adaptive in (
        {"max_exploration": 0.5, "decision_log": str(log)},
        {"policy": "thompson", "max_exploration": 0.5},
        {"policy": "table", "table": [[1, 3, 7], [4, 6, 2], [7, 8, 0]]},
    ):
        result = run_tlt(few, drafter=drafters[0], adaptive=adaptive)
        assert [result.token_ids(index) for index in range(3)] == expected, adaptive
        status = result.status["adaptive"]
        assert result.status["drafter_failures"] == 0
        assert sum(status["steps"].values()) == status["seconds"]["steps"] > 20
        assert status["seconds"]["target"] > 0
        if adaptive.get("policy") == "table":
            assert result.status["drafts"] > 0
        else:
            assert len(status["steps"]) > 2, "it tried nothing"
            assert set(status["estimates"]) > {"none", "ngram-w16", "both-d4-k4-w16"}
            assert status["exploration_share"] > 0
    decisions = read_decisions(log)
    assert {decision.strategy for decision in decisions} > {"none"}
    assert any(decision.is_exploration for decision in decisions)


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["learned", "both"])
def test_drafts_are_as_good_after_a_pause_as_without_one(tiny_llama, batches, without_drafts, drafters, drafter):
    """Public case J2: while nothing is drafted the window goes on being filled, so nothing is computed again after."""
    settings = {"method": "tlt", "drafter": drafters[0], "train": {"enabled": False}}
    observed = {**TINY_ENGINE, "worker_extension_cls": "worker.extensions.Switch"}

    def acceptance(calls):
        job = EngineJob(tiny_llama, [batches[0]], {**settings, "adaptive": only(drafter)}, observed, calls=calls)
        result = run_engine(job)
        assert_same_tokens(result, without_drafts, batches[:1])
        return result.status["acceptance_length"], result.status["drafts"]

    always, num_always = acceptance([])
    paused, num_paused = acceptance([(0, 3, "set_strategy", ["none"]), (0, 13, "set_strategy", [drafter])])
    assert num_paused < 0.95 * num_always
    assert paused > always - 0.25


@pytest.mark.slow
def test_k_changes_at_random_from_step_to_step(tiny_llama, batches, without_drafts, answers):
    """Public case J4: no drafts of a former choice are verified."""
    observed = {**TINY_ENGINE, "worker_extension_cls": "worker.extensions.Switch"}
    calls = [(0, step, "set_width", [(step * 7) % 6]) for step in range(2, 40)]
    job = EngineJob(
        tiny_llama, [batches[0]], {"method": "tlt", **oracle(answers)}, observed, calls=calls, traces_drafts=True
    )
    result = run_engine(job)
    assert_same_tokens(result, without_drafts, batches[:1])
    assert result.status["trees"]["mismatched"] == 0
    assert {len(drafts) for _, _, drafts in result.drafts} >= {0, 1, 2, 3}


@pytest.mark.slow
def test_a_wrong_option_of_a_request_is_refused_and_nothing_is_lost(tiny_llama, batches):
    bad = {**batches[0]["params"], "extra_args": {"tlt_max_draft_tokens": -1}}
    batch = {"prompts": batches[0]["prompts"][:1], "params": bad}
    job = EngineJob(tiny_llama, [batch], {"method": "tlt", "adaptive": ALWAYS}, TINY_ENGINE)
    with pytest.raises(RuntimeError, match=r"tlt_max_draft_tokens: expected a whole number from 0 on, got -1"):
        run_engine(job)
