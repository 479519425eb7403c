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
    """Attention of all passes: within each sample over the first pass's keys, elementwise over the chain's own."""

    def __init__(self, batch: PackedBatch, window: int) -> None:
        self._batch = batch
        self._window = window
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def __call__(self, query_TNH: Tensor, key_TKH: Tensor, value_TKH: Tensor) -> Tensor:
        groups = query_TNH.shape[1] // key_TKH.shape[1]
        self._keys.append(key_TKH.repeat_interleave(groups, dim=1))
        self._values.append(value_TKH.repeat_interleave(groups, dim=1))
        query_TNH = query_TNH * query_TNH.shape[-1] ** -0.5
        # Samples do not see each other, so each is a product of its own: one over the whole batch would mostly compute
        # what the mask then hides.
        return torch.cat([self._attend(query_TNH, block) for block in self._batch.blocks()])

    def _attend(self, query_TNH: Tensor, block: slice) -> Tensor:
        query_NTH = query_TNH[block].transpose(0, 1)
        keys, values = ([part[block].transpose(0, 1) for part in parts] for parts in (self._keys, self._values))
        visible = visible_positions(query_NTH.shape[1], self._window - len(keys) + 1, query_NTH.device)
        bias = query_NTH.new_zeros(visible.shape).masked_fill_(~visible, -torch.inf)
        scores = [query_NTH @ keys[0].transpose(1, 2) + bias]
        scores += [(query_NTH * key).sum(-1, keepdim=True) for key in keys[1:]]
        weights_NTS = torch.cat(scores, dim=-1).softmax(dim=-1)
        num_keys = keys[0].shape[1]
        output_NTH = weights_NTS[..., :num_keys] @ values[0]
        for place, value in enumerate(values[1:]):
            output_NTH = output_NTH + weights_NTS[..., num_keys + place, None] * value
        return output_NTH.transpose(0, 1)


def visible_positions(num_positions: int, window: int, device: torch.device) -> Tensor:
    """Returns which positions of a sample each of them sees: not after it, fewer than ``window`` before it.

    Args:
        num_positions: of the sample.
        window: positions that are seen, the own included.
        device: where the result goes.

    Returns:
        ``[num_positions, num_positions]`` bool.
    """
    positions = torch.arange(num_positions, device=device)
    distance = positions[:, None] - positions[None, :]
    return (distance >= 0) & (distance < window)
