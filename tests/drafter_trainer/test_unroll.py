"""The unrolled drafter is the drafter that will draft, and packing changes nothing."""

import pytest
import torch

from drafter.small import FAMILIES, random_embedding, random_sample, small_drafter
from reference.drafter import reference_logits
from tlt_engine.drafter_trainer import loss
from tlt_engine.drafter_trainer.acceptance import chain_acceptance, chain_hits
from tlt_engine.drafter_trainer.loss import TargetHead, unrolled_loss
from tlt_engine.drafter_trainer.sample import PackedBatch
from tlt_engine.drafter_trainer.unroll import unroll

EMBEDDING = random_embedding()


def embed(token_ids):
    return EMBEDDING[token_ids]


HEAD = TargetHead(lambda: EMBEDDING)


def soft_targets(batch, samples, model):
    targets = torch.zeros(len(batch), model.config.draft_vocab_size, dtype=torch.float64)
    targets[batch.is_learnt] = torch.cat([HEAD.soft_targets(one, model.draft_vocabulary) for one in samples]).double()
    return targets


def passes_of(model, samples, num_passes):
    return list(unroll(model, PackedBatch.pack(samples, torch.float64), embed, num_passes))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("window", [4, 64])
def test_each_pass_is_a_draft_after_right_drafts(family, window):
    model, sample = small_drafter(family, window=window), random_sample(9)
    results = passes_of(model, [sample], 3)
    tokens = sample.token_ids.tolist()
    for depth, result in enumerate(results):
        for index in range(len(sample) - 1 - depth):
            expected = reference_logits(
                model,
                EMBEDDING,
                tokens[: index + 2],
                sample.features[: index + 1],
                tokens[index + 2 : index + 2 + depth],
            )
            assert torch.allclose(model.logits(result.hidden[index]), expected, rtol=1e-4, atol=1e-5), (depth, index)


def test_validity_ends_with_the_sample_and_starts_with_the_response():
    results = passes_of(small_drafter(), [random_sample(6, num_prompt_tokens=3), random_sample(4, seed=3)], 2)
    assert results[0].starts.tolist() == results[1].starts.tolist() == [0, 1, 2, 3, 4, 6, 7, 8]
    assert results[0].is_valid.tolist() == [False, True, True, True, True, True, True, True]
    assert results[1].is_valid.tolist() == [True, True, True, True, False, True, True, False]


@pytest.mark.parametrize("window", [4, 64])
def test_where_the_prompt_is_long_the_response_is_read_as_ever(window):
    model, whole = small_drafter(window=window), random_sample(12)
    tail = type(whole)(**vars(whole) | {"num_prompt_tokens": 8})
    for all_rows, few_rows in zip(passes_of(model, [whole], 3), passes_of(model, [tail, whole], 3), strict=True):
        starts = few_rows.starts[few_rows.starts < len(tail) - 1]
        assert starts.tolist() == list(range(4, 11))
        rows = few_rows.is_valid[: len(starts)].nonzero()[:, 0]
        assert len(rows) >= 4
        assert torch.allclose(few_rows.hidden[rows], all_rows.hidden[starts[rows]], atol=1e-9)


def test_packed_samples_give_the_same_gradient_as_each_alone():
    samples = [random_sample(9, seed=4, num_prompt_tokens=2), random_sample(5, seed=5), random_sample(7, seed=6)]

    def gradient(batches):
        model = small_drafter().requires_grad_(True)
        for batch_samples in batches:
            batch = PackedBatch.pack(batch_samples, torch.float64)
            targets = soft_targets(batch, batch_samples, model)
            passes = list(unroll(model, batch, embed, 2))
            num_valid = sum(int(result.is_valid.sum()) for result in passes[:1])
            value = unrolled_loss(model, passes[:1], targets, batch.features, 0.0)
            (value * num_valid).backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    assert torch.allclose(gradient([samples]), gradient([[sample] for sample in samples]), rtol=1e-6, atol=1e-9)


def test_positions_of_a_sample_that_begins_late_are_its_own():
    model = small_drafter()
    early, late = random_sample(8), random_sample(8, first_position=100)
    both = [passes_of(model, [sample], 1)[0].hidden for sample in (early, late)]
    assert torch.allclose(*both, atol=1e-4), "rotation sees distances only"
    packed = passes_of(model, [late, early], 1)[0].hidden
    assert torch.allclose(packed[:7], both[1][:7], atol=1e-9)  # the last one has no next token


@pytest.mark.parametrize("num_prompt_tokens", [0, 1, 4])  # all positions predict what is learnt, so too, the last two
def test_soft_targets_leave_out_what_cannot_be_drafted(num_prompt_tokens, monkeypatch):
    monkeypatch.setattr(loss, "CHUNK_TOKENS", 7)  # the vocabulary in parts, the last one smaller
    sample, vocabulary = random_sample(5, num_prompt_tokens=num_prompt_tokens), torch.tensor([0, 3, 7])
    expected = (sample.final_hidden @ EMBEDDING.T).softmax(-1)[:, vocabulary].float()
    target_head = TargetHead(lambda: EMBEDDING)
    for _ in range(2):  # found, and remembered
        found = target_head.soft_targets(sample, vocabulary)
        assert torch.allclose(found, expected[max(0, num_prompt_tokens - 1) :])
    assert (expected.sum(-1) < 0.9).all(), "the case would not tell"


def test_soft_targets_follow_a_head_that_changed():
    weight, vocabulary, sample = EMBEDDING.clone(), torch.tensor([0, 3, 7]), random_sample(5)
    target_head = TargetHead(lambda: weight)
    before = target_head.soft_targets(sample, vocabulary)
    weight.mul_(0.5)
    target_head.refresh()
    expected = (sample.final_hidden @ weight.T).softmax(-1)[:, vocabulary].float()
    assert torch.allclose(target_head.soft_targets(sample, vocabulary), expected)
    assert not torch.allclose(before, expected)


def test_the_loss_is_least_where_the_drafter_says_what_the_target_says():
    model, sample = small_drafter(), random_sample(9)
    batch = PackedBatch.pack([sample], torch.float64)
    passes = passes_of(model, [sample], 2)
    own = torch.zeros(len(batch), model.config.draft_vocab_size, dtype=torch.float64)
    own[passes[0].target_index[:8]] = model.logits(passes[0].hidden[:8]).softmax(-1)
    least = unrolled_loss(model, passes[:1], own, batch.features, 0.0)
    wrong = unrolled_loss(model, passes[:1], own.roll(1, dims=0), batch.features, 0.0)
    assert least < wrong
    entropy = -(own[1:] * own[1:].log()).sum(-1).mean()
    assert torch.allclose(least, entropy)


def test_the_feature_loss_sees_distance():
    model, sample = small_drafter(), random_sample(9)
    batch = PackedBatch.pack([sample], torch.float64)
    passes = passes_of(model, [sample], 1)
    targets = torch.zeros(len(batch), model.config.draft_vocab_size, dtype=torch.float64)
    fused = model.fuse(batch.features)
    expected = torch.nn.functional.smooth_l1_loss(passes[0].hidden, fused[1:])
    assert torch.allclose(unrolled_loss(model, passes, targets, batch.features, 0.5), 0.5 * expected)


def test_acceptance_is_that_of_stepping_through_the_text():
    model, sample = small_drafter(), random_sample(40, num_prompt_tokens=1)
    # From some positions the text is the drafter's own chain, cut after 1, 2 or 3 tokens, so that all depths occur.
    tokens = sample.token_ids.tolist()
    for number, place in enumerate(range(4, 36, 4)):
        path = []
        for _ in range(1 + number % 3):
            logits = reference_logits(model, EMBEDDING, tokens[:place], sample.features[: place - 1], path)
            path.append(model.draft_vocabulary[logits.argmax()].item())
        tokens[place : place + len(path)] = path
    sample = type(sample)(**vars(sample) | {"token_ids": torch.tensor(tokens)})
    accepted = torch.zeros(3)
    starts = range(1, 40 - 3)
    for start in starts:
        path = []
        for depth in range(3):
            logits = reference_logits(model, EMBEDDING, tokens[: start + 1], sample.features[:start], path)
            path.append(model.draft_vocabulary[logits.argmax()].item())
            if path[-1] != tokens[start + 1 + depth]:
                break
            accepted[depth] += 1
    assert accepted[2] > 0 and accepted[0] < len(starts), "the case would not tell"
    model = model.float()
    rates = chain_acceptance(model, [sample], lambda ids: EMBEDDING[ids].float(), 3)
    assert rates == pytest.approx((accepted / len(starts)).tolist())


def test_hits_do_not_reach_into_the_next_sample():
    model = small_drafter().float()
    batch = PackedBatch.pack([random_sample(4, seed=1), random_sample(4, seed=2)])
    _, is_whole = chain_hits(model, batch, lambda ids: EMBEDDING[ids].float(), 2)
    assert is_whole.tolist() == [True, False, False, True, False, False]
