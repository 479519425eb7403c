"""draft_topk against the formula: log-softmax of scaled logits plus noise, then the largest."""

import pytest
import torch

from reference import draft_topk as reference
from tlt_engine.drafter.candidates import noisy_scores
from tlt_engine.ops import draft_topk

VOCAB = 1000


def arguments(num_reqs, num_nodes, draft_vocab, seed=0, temperatures=(0.0, 1.0, 0.6)):
    generator = torch.Generator().manual_seed(seed)
    return (
        3 * torch.randn(num_reqs, num_nodes, draft_vocab, generator=generator),
        torch.randperm(VOCAB, generator=generator)[:draft_vocab].sort().values,
        torch.tensor([temperatures[req % len(temperatures)] for req in range(num_reqs)]),
        torch.randint(-(2**62), 2**62, (num_reqs,), generator=generator),
        torch.randint(0, 2**33, (num_reqs,), generator=generator),
    )


@pytest.mark.parametrize("top_k", [1, 4, 7])
@pytest.mark.parametrize("draft_vocab", [7, 64, 777, VOCAB])
@pytest.mark.parametrize(("num_reqs", "num_nodes"), [(1, 1), (3, 5)])
def test_the_likeliest_and_their_log_probabilities(num_reqs, num_nodes, draft_vocab, top_k):
    inputs = arguments(num_reqs, num_nodes, draft_vocab, seed=draft_vocab)
    scores, indices = draft_topk(*inputs, top_k)
    expected_scores, expected_indices = reference.draft_topk(*inputs, top_k)
    assert torch.equal(indices, expected_indices), "random scores hold no ties"
    assert torch.allclose(scores.double(), expected_scores, atol=2e-5)


def test_tensors_do_the_same_where_there_is_no_op():
    logits, *keys = arguments(3, 5, 777)
    scores, indices = noisy_scores(logits, *keys).log_softmax(-1).topk(4)
    expected_scores, expected_indices = reference.draft_topk(logits, *keys, 4)
    assert torch.equal(indices, expected_indices)
    assert torch.allclose(scores.double(), expected_scores, atol=2e-5)
    greedy = torch.zeros(3)
    assert noisy_scores(logits, keys[0], greedy, *keys[2:]) is logits


def test_the_first_of_equal_tokens_is_first():
    logits = torch.tensor([[[1.0, 3.0, 3.0, 2.0, 3.0] + [0.0] * 100 + [3.0]]])
    keys = torch.zeros(1), torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long)
    scores, indices = draft_topk(logits, torch.arange(106), *keys, 5)
    assert indices.tolist() == [[[1, 2, 4, 105, 3]]]
    assert scores[0, 0, 0] == scores[0, 0, 3]


@pytest.mark.parametrize("place", [0, 40, 99])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_logit_that_is_no_number_shows_in_every_score_of_its_node(place, temperature):
    logits, *keys = arguments(1, 2, 100, temperatures=(temperature,))
    logits[0, 1, place] = float("nan")
    scores, indices = draft_topk(logits, *keys, 3)
    assert scores[0, 0].isfinite().all()
    assert scores[0, 1].isnan().all()
    assert ((indices >= 0) & (indices < 100)).all()


def test_tokens_that_are_ruled_out_come_last():
    logits, *keys = arguments(1, 1, 70, temperatures=(1.0,))
    logits[0, 0, 2:] = -torch.inf
    scores, indices = draft_topk(logits, *keys, 4)
    assert set(indices[0, 0, :2].tolist()) == {0, 1}
    assert scores[0, 0, :2].exp().sum() == pytest.approx(1.0)
    assert (scores[0, 0, 2:] == -torch.inf).all()


WRONG_ARGUMENTS = [
    (0, torch.zeros(2, 3, 9, dtype=torch.float64), "logits must be float32, but is Double"),
    (0, torch.zeros(2, 9), r"logits must be \[num_reqs, num_nodes, draft_vocab\], but has shape \[2, 9\]"),
    (1, torch.arange(8), "vocabulary must have 9 entries, but has 8"),
    (1, torch.arange(9).flip(0), "vocabulary must ascend from 0 or more, but entry 1 is 7"),
    (2, torch.zeros(3), "temperature must have 2 entries, but has 3"),
    (3, torch.zeros(2), "seeds must be Long, but is Float"),
    (5, 10, r"top_k must be in \[1, 9\], but is 10"),
]


@pytest.mark.parametrize(("position", "replacement", "message"), WRONG_ARGUMENTS)
def test_wrong_arguments_name_themselves(position, replacement, message):
    keys = torch.zeros(2, dtype=torch.long)
    inputs = [torch.zeros(2, 3, 9), torch.arange(9), torch.zeros(2), keys, keys, 2]
    inputs[position] = replacement
    with pytest.raises(RuntimeError, match=message):
        draft_topk(*inputs)


def test_schema_and_fake():
    torch.library.opcheck(torch.ops.tlt_engine.draft_topk.default, (*arguments(3, 2, 65), 4))
