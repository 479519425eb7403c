"""The noise: known ahead, the same as what is drawn with, and seeds that tell requests apart."""

import numpy as np
import pytest
import torch

from tlt_engine import ops
from tlt_engine.spec.noise import arrival_seed, gumbel_noise, signed_64


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (-7, 3), (2**63 - 1, 2**40)])
def test_noise_known_ahead_is_what_the_draw_uses(seed, position):
    vocab = 500
    noise = gumbel_noise(seed, position, np.arange(vocab))
    keys = torch.tensor([seed]), torch.tensor([position])
    assert int(ops.gumbel_argmax(torch.zeros(1, vocab), torch.ones(1), *keys)) == int(noise.argmax())
    # A logit that makes up for the difference in noise, and a bit more, wins; a bit less loses.
    other = int(noise.argmin())
    for extra, winner in ((1e-3, other), (-1e-3, int(noise.argmax()))):
        logits = torch.zeros(1, vocab)
        logits[0, other] = float(noise.max() - noise.min()) + extra
        assert int(ops.gumbel_argmax(logits, torch.ones(1), *keys)) == winner


def test_noise_is_standard_gumbel():
    noise = gumbel_noise(3, 5, np.arange(200_000))
    assert noise.mean() == pytest.approx(0.5772, abs=0.01)
    assert noise.std() == pytest.approx(1.2825, abs=0.01)


def test_positions_may_differ_from_token_to_token():
    tokens, positions = np.array([4, 4, 9]), np.array([0, 1, 1])
    each = [
        float(gumbel_noise(8, int(position), np.array([token]))[0])
        for token, position in zip(tokens, positions, strict=True)
    ]
    assert gumbel_noise(8, positions, tokens).tolist() == each


def test_arrival_seeds_differ_and_repeat():
    seeds = [arrival_seed(0, arrival) for arrival in range(10_000)]
    assert len(set(seeds)) == len(seeds)
    assert seeds == [arrival_seed(0, arrival) for arrival in range(10_000)]
    assert arrival_seed(1, 0) != arrival_seed(0, 0)
    assert all(-(2**63) <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(("value", "expected"), [(5, 5), (-1, -1), (2**64 - 1, -1), (2**63, -(2**63))])
def test_any_integer_seed_fits_an_int64(value, expected):
    assert signed_64(value) == expected
