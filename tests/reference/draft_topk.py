"""The likeliest next tokens in float64, one logit after the other."""

import torch
from torch import Tensor

from reference.gumbel_argmax import gumbel, noise_word


def draft_topk(
    logits: Tensor, vocabulary: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor, top_k: int
) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities and draft indices of the largest entries."""
    scores = logits.double().clone()
    for req, (heat, seed, position) in enumerate(
        zip(temperature.tolist(), seeds.tolist(), positions.tolist(), strict=True)
    ):
        if heat > 0:
            noise = [gumbel(noise_word(seed, position, token)) for token in vocabulary.tolist()]
            scores[req] = scores[req] / heat + torch.tensor(noise, dtype=torch.float64)
    best = scores.log_softmax(-1).topk(top_k)
    return best.values, best.indices
