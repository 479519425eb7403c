"""What the drafter learns: the target's distribution, as far as the draft vocabulary goes."""

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from tlt_engine.drafter.model import DrafterModel
from tlt_engine.drafter_trainer.unroll import Pass

TargetHead = Callable[[Tensor], Tensor]
"""The target's head: final hidden states ``[T, target_hidden]`` to logits ``[T, vocab]``; a reference, no copy."""

CHUNK_ROWS = 64
"""Rows of the target's logits at a time: with a vocabulary of a hundred thousand they fill a CPU's cache."""

DEPTH_WEIGHT = 0.8
"""Weight of each pass relative to the one before: a deeper token counts only if all before it were right."""


@torch.no_grad()
def soft_targets(final_hidden: Tensor, head: TargetHead, draft_vocabulary: Tensor) -> Tensor:
    """Returns the target's probabilities of the tokens that can be drafted.

    They are not renormalised: where the target means a token that cannot be drafted, there is little to learn, and the
    position weighs as little.

    Args:
        final_hidden: ``[T, target_hidden]`` float.
        head: the target's.
        draft_vocabulary: ``[draft_vocab]`` int64. Token ids that can be drafted.

    Returns:
        ``[T, draft_vocab]`` float32.
    """
    parts = []
    for rows in final_hidden.split(CHUNK_ROWS):
        logits = head(rows).float()
        parts.append((logits[:, draft_vocabulary] - logits.logsumexp(dim=-1, keepdim=True)).exp())
    return torch.cat(parts)


def unrolled_loss(
    model: DrafterModel, passes: Iterable[Pass], targets: Tensor, features: Tensor, feature_weight: float
) -> Tensor:
    """Returns the loss of all passes: cross entropy with the target, and the distance to its features if asked for.

    Args:
        model: the drafter.
        passes: from ``unroll``.
        targets: ``[T, draft_vocab]``. Soft targets of every index.
        features: ``[T, num_aux * target_hidden]``. Recorded features of every index.
        feature_weight: weight of the feature loss of EAGLE and HASS; 0 for none.

    Returns:
        Scalar, a weighted mean over passes and positions.
    """
    total = targets.new_zeros(())
    total_weight = 0.0
    for depth, result in enumerate(passes):
        rows = result.is_valid.nonzero()[:, 0]
        if not len(rows):
            continue
        hidden, wanted = result.hidden[rows], result.target_index[rows]
        loss = -(targets[wanted] * model.logits(hidden).log_softmax(dim=-1)).sum(dim=-1).mean()
        if feature_weight:
            with torch.no_grad():
                fused = model.fuse(features[wanted])
            loss = loss + feature_weight * F.smooth_l1_loss(hidden, fused)
        weight = DEPTH_WEIGHT**depth
        total = total + weight * loss
        total_weight += weight
    return total / max(total_weight, 1.0)
