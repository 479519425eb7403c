"""Whether two responses part where the target's choice was a tie: then matrix products of another shape may decide."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from benchmarks.jobs import JobRequest
from tlt_engine.spec.noise import gumbel_noise

LARGEST_GAP = 1e-4
"""Difference of two scores that float32 may turn around."""


@lru_cache(maxsize=1)
def _target(model: str) -> Any:
    """Loads the target as transformers computes it: an opinion that shares no code with either engine."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)


def gap_where_they_part(model: str, request: JobRequest, mine: Sequence[int], theirs: Sequence[int]) -> float:
    """Returns the difference of the scores of the two tokens at which two responses part.

    Args:
        model: Directory of the target.
        request: The request; only temperature and seed may shape its sampling.
        mine: A response of a TLT engine.
        theirs: Another one.

    Returns:
        Difference of ``logit / temperature + noise``; infinite if one response is a prefix of the other.
    """
    import torch

    place = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
    if place is None:
        return float("inf")
    context = torch.tensor([[*request.prompt_token_ids, *mine[:place]]])
    with torch.inference_mode():
        logits = _target(model)(context).logits[0, -1].double().numpy()
    tokens = np.array([mine[place], theirs[place]], np.int64)
    scores = logits[tokens]
    if request.temperature > 0:
        assert request.seed is not None
        scores = scores / request.temperature + gumbel_noise(request.seed, place, tokens)
    return float(abs(scores[0] - scores[1]))
