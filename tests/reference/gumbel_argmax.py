"""Gumbel-max sampling token by token: Philox in Python integers, the noise in float64, rounded once
before it is added."""

import math

import numpy as np
import torch
from torch import Tensor

MASK = 0xFFFFFFFF
DOMAIN = 0x544C5400


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 as printed in Salmon et al. 2011: ten rounds, the key bumped between them."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c0, 1 << 32)
        high1, low1 = divmod(0xCD9E8D57 * c2, 1 << 32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c0, c1, c2, c3


def noise_word(seed: int, position: int, token: int) -> int:
    """The random word of one token."""
    group, place = divmod(token, 64)
    word, lane = divmod(place, 16)
    counter = (group * 16 + lane, position & MASK, position >> 32 & MASK, DOMAIN)
    return philox4x32(counter, (seed & MASK, seed >> 32 & MASK))[word]


def gumbel(word: int) -> float:
    """The Gumbel variate of a word. The uniform is rounded to float32 where the contract says so."""
    rounded = np.float32(word) + np.float32(0.5)
    uniform = min(float(rounded) * 2.0**-32, 1.0 - 2.0**-24)
    return -math.log(-math.log1p(-uniform))


def gumbel_argmax(logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Returns the winning token of each row; NaN never wins."""
    token_ids = []
    for row, row_temperature in enumerate(temperature.tolist()):
        scores = logits[row].float()
        if row_temperature >= 1e-5:
            scores = scores / temperature[row]
            seed, position = int(seeds[row]), int(positions[row])
            noise = [gumbel(noise_word(seed, position, token)) for token in range(logits.shape[1])]
            scores = scores + torch.tensor(noise, dtype=torch.float32)
        best, best_score = 0, -math.inf
        for token, score in enumerate(scores.tolist()):
            if score > best_score:
                best, best_score = token, score
        token_ids.append(best)
    return torch.tensor(token_ids)
