"""The drafter run over recorded text as it will run when it drafts: first on features, then on its own outputs.

In pass ``k`` index ``i`` stands for the ``k``-th draft token after position ``i``: it reads the token ``k`` places on,
the output of pass ``k - 1``, the features' keys up to ``i``, and the keys of its own earlier passes. The tokens are
those that the target wrote, so pass ``k`` is the drafter's answer where all drafts before were right: what training
needs, and an exact account of how far a greedy chain would be accepted.

Shape suffixes as in ``drafter.model``; S keys.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tlt_engine.drafter.model import DrafterModel
from tlt_engine.drafter_trainer.sample import PackedBatch

Embed = Callable[[Tensor], Tensor]
"""The target's embedding: token ids ``[T]`` to ``[T, hidden_size]``; shared, never trained."""


@dataclass(frozen=True)
class Pass:
    """One pass over the batch."""

    hidden: Tensor
    """``[T, hidden_size]``. Output of the layer."""
    target_index: Tensor
    """``[T]`` int64. Index whose next token is predicted; clamped where there is none."""
    is_valid: Tensor
    """``[T]`` bool. Whether that index lies in the same sample and the target wrote the token after it."""


def unroll(model: DrafterModel, batch: PackedBatch, embed: Embed, num_passes: int) -> Iterator[Pass]:
    """Runs the drafter ``num_passes`` tokens deep from every position at once.

    Args:
        model: the drafter.
        batch: recorded text.
        embed: the target's embedding.
        num_passes: depth; 1 reads features only.

    Yields:
        One pass a depth.

    Source: training-time test of EAGLE-3 (arXiv:2503.01840).
    """
    attend = _ChainAttention(batch, model.config.window)
    hidden = model.fuse(batch.features)
    places = torch.arange(len(batch), device=batch.token_ids.device)
    for depth in range(num_passes):
        target_index = (places + 1 + depth).clamp(max=len(batch) - 1)
        is_same = (places + 1 + depth < len(batch)) & (batch.sample_of[target_index] == batch.sample_of)
        embedding = embed(batch.token_ids[target_index])
        hidden = model(embedding, hidden, model.rotary(hidden, batch.positions + depth), attend)
        yield Pass(hidden, target_index, is_same & batch.is_learnt[target_index])


class _ChainAttention:
    """Attention of all passes: full over the first one's keys, elementwise over the chain's own."""

    def __init__(self, batch: PackedBatch, window: int) -> None:
        self._batch = batch
        self._window = window
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def __call__(self, query_TNH: Tensor, key_TKH: Tensor, value_TKH: Tensor) -> Tensor:
        visible = self._batch.visible(self._window - len(self._keys))  # deeper tokens stand further on
        bias = query_TNH.new_zeros(visible.shape).masked_fill_(~visible, -torch.inf)
        groups = query_TNH.shape[1] // key_TKH.shape[1]
        self._keys.append(key_TKH.repeat_interleave(groups, dim=1))
        self._values.append(value_TKH.repeat_interleave(groups, dim=1))
        query_NTH = query_TNH.transpose(0, 1) * query_TNH.shape[-1] ** -0.5
        scores = [query_NTH @ self._keys[0].permute(1, 2, 0) + bias]
        scores += [(query_NTH * key.transpose(0, 1)).sum(-1, keepdim=True) for key in self._keys[1:]]
        weights_NTS = torch.cat(scores, dim=-1).softmax(dim=-1)
        num_keys = len(self._keys[0])
        output_NTH = weights_NTS[..., :num_keys] @ self._values[0].transpose(0, 1)
        for place, value in enumerate(self._values[1:]):
            output_NTH = output_NTH + weights_NTS[..., num_keys + place, None] * value.transpose(0, 1)
        return output_NTH.transpose(0, 1)
