"""What the drafter learns: the target's distribution, as far as the draft vocabulary goes."""

from collections.abc import Callable, Iterable
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from tlt_engine.drafter.model import DrafterModel
from tlt_engine.drafter_trainer.sample import Sample
from tlt_engine.drafter_trainer.unroll import Pass

CHUNK_TOKENS = 4096
"""Rows of the target's head at a time: a large vocabulary at once would fill a CPU's cache many times over."""

DEPTH_WEIGHT = 0.8
"""Weight of each pass relative to the one before: a deeper token counts only if all before it were right."""


class TargetHead:
    """The target's head, read where it is; what was found of a sample is kept while the sample lives."""

    def __init__(self, weight: Callable[[], Tensor]) -> None:
        """Wraps a head.

        Args:
            weight: returns ``[vocab, target_hidden]``, the tensor in use.
        """
        self._weight = weight
        self._log_normalisers: WeakKeyDictionary[Sample, Tensor] = WeakKeyDictionary()

    def refresh(self) -> None:
        """Forgets what was found with weights that are no longer the target's."""
        self._log_normalisers.clear()

    @torch.no_grad()
    def soft_targets(self, sample: Sample, draft_vocabulary: Tensor) -> Tensor:
        """Returns the target's probabilities of the tokens that can be drafted, where they are learnt.

        They are not renormalised: where the target means a token that cannot be drafted, there is little to learn, and
        the position weighs as little.

        Args:
            sample: of the target; its last ``sample.num_predictions()`` hidden states are read.
            draft_vocabulary: ``[draft_vocab]`` int64. Token ids that can be drafted.

        Returns:
            ``[num_predictions, draft_vocab]`` float32.
        """
        weight = self._weight()
        final_hidden = sample.final_hidden[len(sample) - sample.num_predictions() :].to(weight.device, weight.dtype)
        log_normaliser = self._log_normalisers.get(sample)
        if log_normaliser is None:  # over the whole vocabulary, so only once
            log_normaliser = self._log_normalisers[sample] = _log_normaliser(final_hidden, weight)
        logits = F.linear(final_hidden, weight[draft_vocabulary]).float()
        return (logits - log_normaliser[:, None]).exp_()


def _log_normaliser(final_hidden: Tensor, weight: Tensor) -> Tensor:
    """Returns the logarithm of the sum of all tokens' exponentials, ``[T]`` float32."""
    parts = [F.linear(final_hidden, rows).float().logsumexp(dim=-1) for rows in weight.split(CHUNK_TOKENS)]
    return torch.stack(parts).logsumexp(dim=0)


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
