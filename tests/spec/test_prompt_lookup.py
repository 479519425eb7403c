"""The model-free drafter: what it drafts from, what it keeps, and that it stays within its caps."""

import random

import numpy as np
import pytest
import torch

from tlt_engine import ops
from tlt_engine.config import MIB, PromptLookupConfig
from tlt_engine.spec.backoff_model import TOKENS_PER_GENERATION, BackoffModel
from tlt_engine.spec.calibration import Calibration, Continuation, prob_given_noise
from tlt_engine.spec.drafter import DraftRequest, FinishReason
from tlt_engine.spec.prompt_lookup import PromptLookup
from tlt_engine.spec.response_cache import ResponseCache
from tlt_engine.spec.tree import ROOT


def request(req_id, prompt, output, max_nodes=8, max_depth=99, seed=None):
    tokens = np.array(prompt + output, np.int32)
    return DraftRequest(req_id, tokens, len(prompt), max_nodes, seed=seed, max_depth=max_depth)


def paths(tree):
    """Every root-to-node path of a tree."""
    found = []
    for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
        found.append((found[parent] if parent != ROOT else ()) + (token_id,))
    return set(found)


def sourced(tree):
    """Every path with the source of its last node."""
    found = []
    for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
        found.append((found[parent] if parent != ROOT else ()) + (token_id,))
    return list(zip(found, tree.sources, strict=True))


def test_continues_the_prompt():
    tree = PromptLookup(PromptLookupConfig()).propose([request("a", [1, 2, 3, 4, 5, 6, 1, 2], [3])])[0]
    assert (4, 5, 6) in paths(tree)
    assert "request" in tree.sources


def test_drafts_from_a_sibling_that_runs_beside_it():
    drafter = PromptLookup(PromptLookupConfig())
    prompt = [50, 51]
    trees = drafter.propose([request("a", prompt, [7, 8, 9, 10]), request("b", prompt, [7, 8])])
    assert (9, 10) in paths(trees[1])
    assert "prompt" in trees[1].sources


def test_drafts_from_a_finished_response_to_another_prompt_but_not_from_an_aborted_one():
    drafter = PromptLookup(PromptLookupConfig())
    drafter.propose([request("a", [1], [20, 21, 22]), request("b", [2], [30, 31, 32])])
    drafter.finish("a", FinishReason.COMPLETED)
    drafter.finish("b", FinishReason.ABORTED)
    after_ended, after_aborted = drafter.propose([request("c", [3], [20, 21]), request("d", [4], [30, 31])])
    assert (22,) in paths(after_ended)
    assert not any(path[:1] == (32,) and source == "recent" for path, source in sourced(after_aborted))


def test_two_continuations_of_one_context_branch():
    tree = PromptLookup(PromptLookupConfig()).propose([request("a", [1, 2, 3, 9, 1, 2, 4, 9, 1], [2])])[0]
    assert {(3,), (4,)} <= paths(tree)


def test_merged_answers_hold_each_path_once():
    drafter = PromptLookup(PromptLookupConfig())
    prompt = [1, 2, 3, 4]
    for i in range(4):
        drafter.propose([request(f"r{i}", prompt, [2, 3, 4, 5, 6])])
    tree = drafter.propose([request("last", prompt, [2, 3])])[0]
    assert tree.problem(100) is None
    assert len(paths(tree)) == len(tree)


@pytest.mark.parametrize("prompt", [[], [1], [1, 2], [1, 1, 1]])
def test_short_prompts_draft_nothing_or_something_but_never_fail(prompt):
    tree = PromptLookup(PromptLookupConfig()).propose([request("a", prompt, [1])])[0]
    assert tree.problem(10) is None


def test_no_room_is_no_draft_but_the_tokens_are_learnt():
    drafter = PromptLookup(PromptLookupConfig())
    assert len(drafter.propose([request("a", [1, 2, 3, 1], [2], max_nodes=0)])[0]) == 0
    assert (3,) in paths(drafter.propose([request("a", [1, 2, 3, 1], [2], max_nodes=4)])[0])


def test_survives_the_return_of_a_preempted_request():
    """A preempted request comes back with the tokens it had: the trees must not see them twice."""
    drafter = PromptLookup(PromptLookupConfig())
    drafter.propose([request("a", [1, 2, 3], [4, 5])])
    before = drafter.num_bytes()
    drafter.propose([request("a", [1, 2, 3], [4, 5])])
    assert drafter.num_bytes() == before
    assert all(used <= cap for used, cap in before.values())


def test_estimates_follow_what_comes_true():
    calibration = Calibration()
    sure, doubtful = (Continuation(5, ROOT, (source, 4, 4), 0.5) for source in ("request", "recent"))
    for _ in range(200):
        calibration.learn([sure], [5])
        calibration.learn([doubtful], [6])
    assert calibration.estimate(sure) > 0.95
    assert calibration.estimate(doubtful) < 0.05


def test_only_nodes_whose_parents_were_emitted_are_scored():
    calibration = Calibration()
    parent, child = Continuation(5, ROOT, ("request", 2), 0.5), Continuation(9, 0, ("request", 3), 0.5)
    before = calibration.estimate(child)
    calibration.learn([parent, child], [6, 9])
    assert calibration.estimate(child) == before
    calibration.learn([parent, child], [5, 9])
    assert calibration.estimate(child) > before


@pytest.mark.parametrize("prob", [0.05, 0.3, 0.9])
def test_probability_given_the_noise_averages_to_the_probability(prob):
    rng = np.random.default_rng(0)
    noise = rng.gumbel(size=200_000)
    values = np.array([prob_given_noise(prob, value) for value in noise])
    assert values.mean() == pytest.approx(prob, abs=0.004)
    assert prob_given_noise(prob, 3.0) > prob > prob_given_noise(prob, -1.0)


def test_drafter_sees_the_noise_that_the_target_draws_with():
    """A target that has learnt nothing but token frequencies: knowing its noise, the drafter foresees its draws."""
    vocab, num_tokens, seed = 40, 600, 11
    logits = torch.linspace(2.0, -2.0, vocab)[None]
    drawn = [
        int(ops.gumbel_argmax(logits, torch.ones(1), torch.tensor([seed]), torch.tensor([place])))
        for place in range(num_tokens)
    ]
    hits = {}
    for sees_noise in (False, True):
        drafter = PromptLookup(PromptLookupConfig())
        hits[sees_noise] = 0
        for place in range(1, num_tokens):
            known = seed if sees_noise else None
            tree = drafter.propose([request("a", [1], drawn[:place], max_nodes=1, seed=known)])[0]
            hits[sees_noise] += tree.token_ids == [drawn[place]] and place > num_tokens // 2
    assert hits[True] > 2.5 * hits[False]


def test_backoff_model_is_bounded_and_follows_what_is_new():
    model = BackoffModel()
    model.learn([1, 2] * (TOKENS_PER_GENERATION // 2 + 1), 0)
    for start in range(10, 13):
        model.learn([start, start + 1] * (TOKENS_PER_GENERATION // 2 + 1), 0)
    assert model.num_bytes() <= model.max_bytes * 1.01
    tokens = [candidate.token_id for candidate in model.candidates((12, 13), None, 2)]
    assert tokens[0] == 12
    assert 1 not in tokens


def test_backoff_model_prefers_what_followed_the_same_two_tokens():
    model = BackoffModel()
    for _ in range(100):
        model.learn([7, 1, 2, 8, 1, 3], 0)
    assert model.candidates((7, 1), None, 1)[0].token_id == 2
    assert model.candidates((8, 1), None, 1)[0].token_id == 3


def fill(cache, count, length=50, target_version=0, first=0):
    rng = random.Random(first)
    cache.target_version = target_version
    for i in range(first, first + count):
        tokens = np.array([i, *(rng.randrange(1000) for _ in range(length))], np.int32)
        cache.extend(f"r{i}", tokens, 1)
        cache.finish(f"r{i}", keep_response=True)


def test_response_cap_holds():
    cache = ResponseCache(16, max_responses=7, max_bytes=100 * MIB)
    fill(cache, 30)
    assert cache.num_responses() == 7


def test_byte_cap_holds_over_a_long_service_and_is_no_underestimate():
    cache = ResponseCache(24, max_responses=10**6, max_bytes=4 * MIB)
    fill(cache, 1500, length=200)  # 300k tokens would take 240 MB
    assert 3 * MIB < cache.num_bytes() <= 4 * MIB
    trees = [cache._recent, *cache._by_prompt.values()]
    assert sum(tree.estimate_memory() for tree in trees) < 1.2 * cache.num_bytes()


def test_nothing_is_left_of_dropped_requests():
    cache = ResponseCache(16, max_responses=10, max_bytes=100 * MIB)
    for i in range(20):
        cache.extend(f"r{i}", np.arange(i, i + 40, dtype=np.int32), 10)
    for i in range(20):
        cache.finish(f"r{i}", keep_response=False)
    assert cache.num_bytes() == 0
    assert not cache._by_prompt
    assert cache._recent.num_seqs() == 0


def test_responses_of_an_older_target_go_first():
    cache = ResponseCache(16, max_responses=10, max_bytes=100 * MIB)
    fill(cache, 4, target_version=1)
    fill(cache, 4, target_version=0, first=100)  # finished later, but begun before the update
    fill(cache, 5, target_version=1, first=200)
    versions = [response.target_version for response in cache._finished.values()]
    assert versions.count(0) == 1
    assert versions.count(1) == 9
