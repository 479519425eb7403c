"""The runtime drafts what the formulas say, however its keys came to be."""

import copy

import numpy as np
import pytest
import torch

from drafter.small import FAMILIES, HIDDEN, NUM_AUX, VOCAB, random_embedding, random_sample, small_drafter
from reference.drafter import reference_logits
from tlt_engine.drafter.feature_ring import FeatureRing
from tlt_engine.drafter.learned import LearnedDrafter
from tlt_engine.drafter.runtime import LEVEL_ROWS, DrafterRuntime, TreeShape
from tlt_engine.spec.drafter import DraftRequest, FinishReason
from tlt_engine.spec.noise import gumbel_noise
from tlt_engine.spec.tree import ROOT

WINDOW = 8
EMBEDDING = random_embedding()


class Bench:
    """A drafter with its ring, fed by hand."""

    def __init__(self, family="llama", *, window=WINDOW, depth=3, top_k=3, num_slots=3, min_reach=0.0, precision=None):
        self.model = small_drafter(family, window=window)
        self.ring = FeatureRing(num_slots, window, NUM_AUX * HIDDEN, dtype=torch.float64)
        # Without a precision everything is float64; with one the drafter is packed, and the native ops run.
        served = self.model if precision is None else copy.deepcopy(self.model).float()
        self.runtime = DrafterRuntime(
            self.model.config,
            lambda ids: EMBEDDING[ids],
            self.ring,
            num_slots,
            TreeShape(depth, top_k, min_reach),
            served.fc.weight.dtype,
            precision or "auto",
        )
        self.runtime.use(served)
        self.drafter = LearnedDrafter(self.runtime, self.ring)

    def feed(self, sample, start, end):
        assert self.ring.admit(sample.req_id)
        skipped, slot = self.ring.reserve(sample.req_id, start, end - start)
        positions = torch.arange(start + skipped, end)
        parts = list(sample.features.split(HIDDEN, dim=-1))
        self.ring.write(torch.full_like(positions, slot), positions, parts, positions)

    def request(self, sample, num_tokens, *, max_nodes=15, seed=None, temperature=1.0, max_depth=99):
        ids = sample.token_ids[:num_tokens].numpy().astype(np.int32)
        return DraftRequest(sample.req_id, ids, 0, max_nodes, seed, max_depth, temperature)


def paths(tree):
    """Yields the token path to each node."""
    found = []
    for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
        found.append([*(found[parent] if parent != ROOT else []), token_id])
    return found


def path_prob(bench, sample, num_tokens, path):
    prob = 1.0
    vocabulary = bench.model.draft_vocabulary.tolist()
    for place, token_id in enumerate(path):
        logits = reference_logits(
            bench.model,
            EMBEDDING,
            sample.token_ids[:num_tokens].tolist(),
            sample.features[: num_tokens - 1],
            path[:place],
        )
        prob *= logits.softmax(-1)[vocabulary.index(token_id)].item()
    return prob


def assert_right(bench, sample, num_tokens, tree):
    assert len(tree) == 15
    assert max(map(len, paths(tree))) == 3, "a tree of this size over random weights must use its depth"
    for path, prob in zip(paths(tree), tree.probs, strict=True):
        assert prob == pytest.approx(path_prob(bench, sample, num_tokens, path), rel=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("num_tokens", [3, 8, 9, 10, 19])
def test_probabilities_are_those_of_the_formulas(family, num_tokens):
    bench, sample = Bench(family), random_sample(24)
    bench.feed(sample, 0, num_tokens - 1)
    (tree,) = bench.drafter.propose([bench.request(sample, num_tokens)])
    assert_right(bench, sample, num_tokens, tree)


def test_keys_grow_by_what_was_accepted():
    bench, sample = Bench(), random_sample(24)
    fed = 0
    for num_tokens in (3, 4, 7, 9, 12, 13, 20):
        bench.feed(sample, fed, num_tokens - 1)
        fed = num_tokens - 1
        (tree,) = bench.drafter.propose([bench.request(sample, num_tokens)])
        assert_right(bench, sample, num_tokens, tree)


def test_speculation_that_starts_late_needs_no_prefill():
    bench, sample = Bench(), random_sample(24)
    bench.feed(sample, 0, 5)
    bench.drafter.propose([bench.request(sample, 6)])
    bench.feed(sample, 5, 19)
    (tree,) = bench.drafter.propose([bench.request(sample, 20)])
    assert_right(bench, sample, 20, tree)


def test_requests_of_one_step_do_not_see_one_another(monkeypatch):
    monkeypatch.setattr("tlt_engine.drafter.runtime.LEVEL_ROWS", 99)
    bench = Bench()
    samples = [random_sample(24, seed) for seed in (5, 6, 7)]
    lengths = (4, 15, 9)
    for sample, length in zip(samples, lengths, strict=True):
        bench.feed(sample, 0, length - 1)
    trees = bench.drafter.propose(
        [bench.request(sample, length) for sample, length in zip(samples, lengths, strict=True)]
    )
    for sample, length, tree in zip(samples, lengths, trees, strict=True):
        assert_right(bench, sample, length, tree)


def test_a_slot_used_again_holds_nothing_of_its_last_request():
    bench = Bench(num_slots=1)
    first, second = random_sample(24, 5), random_sample(24, 6)
    bench.feed(first, 0, 9)
    bench.drafter.propose([bench.request(first, 10)])
    bench.drafter.finish(first.req_id, FinishReason.COMPLETED)
    bench.feed(second, 0, 9)
    (tree,) = bench.drafter.propose([bench.request(second, 10)])
    assert_right(bench, second, 10, tree)


def test_a_preempted_request_starts_anew():
    bench, sample = Bench(), random_sample(24)
    bench.feed(sample, 0, 14)
    bench.drafter.propose([bench.request(sample, 15)])
    bench.feed(sample, 0, 5)  # a part of the second prefill
    assert len(bench.drafter.propose([bench.request(sample, 15)])[0]) == 0, "its latest feature is not there yet"
    bench.feed(sample, 5, 14)
    (tree,) = bench.drafter.propose([bench.request(sample, 15)])
    assert_right(bench, sample, 15, tree)


def test_features_that_begin_late_are_used_from_there():
    bench, sample = Bench(window=64), random_sample(24)
    bench.feed(sample, 10, 15)  # the positions before came from the prefix cache
    (tree,) = bench.drafter.propose([bench.request(sample, 16)])
    late = small_drafter(window=64)
    # The same as a text that begins there, but for the rotation, which only sees distances.
    logits = reference_logits(late, EMBEDDING, sample.token_ids[10:16].tolist(), sample.features[10:15], [])
    best = late.draft_vocabulary[logits.argmax()].item()
    assert tree.token_ids[tree.probs.index(max(tree.probs))] == best


def test_new_weights_make_new_keys():
    bench, sample = Bench(), random_sample(24)
    bench.feed(sample, 0, 9)
    bench.drafter.propose([bench.request(sample, 10)])
    bench.model.midlayer.self_attn.k_proj.weight.mul_(-1.7)
    bench.runtime.use(bench.model)
    (tree,) = bench.drafter.propose([bench.request(sample, 10)])
    assert_right(bench, sample, 10, tree)


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.1)])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_drafter_drafts_the_same(family, precision, tolerance):
    bench, sample = Bench(family, precision=precision), random_sample(24)
    fed = 0
    for length in (5, 6, 12, 20):  # a first window, a token more, some more, and past the window
        bench.feed(sample, fed, length - 1)
        fed = length - 1
        (tree,) = bench.drafter.propose([bench.request(sample, length)])
        for path, prob in zip(paths(tree), tree.probs, strict=True):
            assert prob == pytest.approx(path_prob(bench, sample, length, path), rel=tolerance, abs=tolerance / 10)


def test_whole_numbers_as_temperatures_are_temperatures():
    bench, sample = Bench(), random_sample(24)
    bench.feed(sample, 0, 9)
    whole, real = (
        bench.drafter.propose([bench.request(sample, 10, seed=3, temperature=temperature)])[0]
        for temperature in (2, 2.0)
    )
    assert whole == real


def test_many_requests_have_fewer_nodes_each():
    samples = [random_sample(24, seed=10 + number) for number in range(LEVEL_ROWS // 2)]
    bench = Bench(num_slots=len(samples))
    for sample in samples:
        bench.feed(sample, 0, 9)
    trees = bench.drafter.propose([bench.request(sample, 10, max_nodes=99) for sample in samples])
    for sample, tree in zip(samples, trees, strict=True):
        assert len(tree) == 3 + 2 * 3 + 2 * 3, "three children each, of the root and of two nodes at each level below"
        for path, prob in zip(paths(tree), tree.probs, strict=True):
            assert prob == pytest.approx(path_prob(bench, sample, 10, path), rel=1e-5)


@pytest.mark.parametrize("min_reach", [1e-3, 0.02, 0.999])
def test_levels_that_no_path_is_likely_to_reach_are_not_grown(min_reach):
    sample = random_sample(24)
    whole, cut = Bench(depth=4), Bench(depth=4, min_reach=min_reach)
    for bench in (whole, cut):
        bench.feed(sample, 0, 9)
    (expected,), (found,) = (bench.drafter.propose([bench.request(sample, 10, max_nodes=99)]) for bench in (whole, cut))
    best_at = [0.0] * 5
    for path, prob in zip(paths(expected), expected.probs, strict=True):
        best_at[len(path)] = max(best_at[len(path)], prob)
    depth = next((depth for depth in range(1, 4) if best_at[depth] < min_reach), 4)
    assert max(map(len, paths(found))) == depth
    assert found.probs == [
        prob for path, prob in zip(paths(expected), expected.probs, strict=True) if len(path) <= depth
    ]


def test_limits_of_a_request_are_kept():
    bench, sample = Bench(), random_sample(24)
    bench.feed(sample, 0, 9)
    requests = [bench.request(sample, 10, max_nodes=2), bench.request(sample, 10, max_depth=1)]
    few, flat = (bench.drafter.propose([request])[0] for request in requests)
    assert len(few) == 2
    assert set(flat.parents) == {ROOT}
    assert len(bench.drafter.propose([bench.request(sample, 10, max_nodes=0)])[0]) == 0


def test_a_sampled_request_is_drafted_for_with_its_noise():
    bench, sample = Bench(depth=2), random_sample(24)
    bench.feed(sample, 0, 9)
    vocabulary = bench.model.draft_vocabulary
    for seed in range(8):
        (tree,) = bench.drafter.propose([bench.request(sample, 10, seed=seed, temperature=0.7)])
        logits = reference_logits(bench.model, EMBEDDING, sample.token_ids[:10].tolist(), sample.features[:9], [])
        noise = torch.from_numpy(np.asarray(gumbel_noise(seed, 10, vocabulary.numpy())))
        drawn = vocabulary[(logits / 0.7 + noise).argmax()].item()
        level_one = [place for place, parent in enumerate(tree.parents) if parent == ROOT]
        assert tree.token_ids[max(level_one, key=lambda place: tree.probs[place])] == drawn
        child = reference_logits(bench.model, EMBEDDING, sample.token_ids[:10].tolist(), sample.features[:9], [drawn])
        noise = torch.from_numpy(np.asarray(gumbel_noise(seed, 11, vocabulary.numpy())))
        wanted = vocabulary[(child / 0.7 + noise).argmax()].item()
        below = [
            place for place, parent in enumerate(tree.parents) if parent != ROOT and tree.token_ids[parent] == drawn
        ]
        assert tree.token_ids[max(below, key=lambda place: tree.probs[place])] == wanted


def test_only_the_draft_vocabulary_is_drafted():
    bench, sample = Bench(), random_sample(24)
    bench.feed(sample, 0, 9)
    (tree,) = bench.drafter.propose([bench.request(sample, 10)])
    assert all(0 <= token_id < VOCAB and token_id % 2 == 0 for token_id in tree.token_ids)
