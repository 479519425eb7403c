"""A response that parts from another at a tie is told from one that parts for no reason."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks import near_ties
from benchmarks.jobs import JobRequest
from tlt_engine.spec.noise import gumbel_noise


@pytest.fixture
def target(monkeypatch):
    """Logits of the token after a context are 0.5 times the token id, whatever the context; contexts are kept."""
    contexts = []

    def forward(context):
        contexts.append(context[0].tolist())
        return SimpleNamespace(logits=(0.5 * torch.arange(16.0)).expand(1, context.shape[1], 16))

    monkeypatch.setattr(near_ties, "_target", lambda _: forward)
    return contexts


def request(**sampling):
    return JobRequest(request_id="a", prompt_token_ids=[9, 8], max_tokens=5, **sampling)


def test_gap_is_that_of_the_two_tokens_after_the_shared_part(target):
    assert near_ties.gap_where_they_part("m", request(), [1, 2, 7], [1, 2, 4, 5]) == pytest.approx(1.5)
    assert target == [[9, 8, 1, 2]]


def test_sampled_scores_have_the_noise_of_their_position(target):
    noise = gumbel_noise(3, 1, torch.tensor([7, 4]).numpy())
    gap = near_ties.gap_where_they_part("m", request(temperature=2.0, seed=3), [1, 7], [1, 4])
    assert gap == pytest.approx(abs(0.5 * 7 / 2 + noise[0] - 0.5 * 4 / 2 - noise[1]))


def test_a_response_cut_short_is_no_tie(target):
    assert near_ties.gap_where_they_part("m", request(), [1, 2], [1, 2, 4]) == float("inf")
