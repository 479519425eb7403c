"""The drafter run over recorded text as it will run when it drafts: first on features, then on its own outputs.

In pass ``k`` index ``i`` stands for the ``k``-th draft token after position ``i``: it reads the token ``k`` places on,
the output of pass ``k - 1``, the features' keys up to ``i``, and the keys of its own earlier passes. The tokens are
those that the target wrote, so pass ``k`` is the drafter's answer where all drafts before were right: what training
needs, and an exact account of how far a greedy chain would be accepted.

Shape suffixes as in ``drafter.model``, T for whatever rows there are; S keys.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from tlt_engine.drafter.model import DrafterModel
from tlt_engine.drafter_trainer.sample import PackedBatch

Embed = Callable[[Tensor], Tensor]
"""The target's embedding: token ids ``[T]`` to ``[T, hidden_size]``; shared, never trained."""


@dataclass(frozen=True)
class Pass:
    """One pass over the batch, from the ``R`` positions where some pass has something to say."""

    starts: Tensor
    """``[R]`` int64. Index that each row starts from, ascending, the same in all passes."""
    hidden: Tensor
    """``[R, hidden_size]``. Output of the layer."""
    target_index: Tensor
    """``[R]`` int64. Index whose next token is predicted; clamped where there is none."""
    is_valid: Tensor
    """``[R]`` bool. Whether that index lies in the same sample and the target wrote the token after it."""


def unroll(model: DrafterModel, batch: PackedBatch, embed: Embed, num_passes: int) -> Iterator[Pass]:
    """Runs the drafter ``num_passes`` tokens deep from every position that the target's own text follows.

    Of the others, such as the prompt, nothing is needed but the first pass's keys.

    Args:
        model: the drafter.
        batch: recorded text.
        embed: the target's embedding.
        num_passes: depth; 1 reads features only.

    Yields:
        One pass a depth.

    Source: training-time test of EAGLE-3 (arXiv:2503.01840).
    """
    places = torch.arange(len(batch), device=batch.token_ids.device)
    targets = [(places + 1 + depth).clamp(max=len(batch) - 1) for depth in range(num_passes)]
    is_valid = [
        (places + 1 + depth < len(batch)) & (batch.sample_of[target] == batch.sample_of) & batch.is_learnt[target]
        for depth, target in enumerate(targets)
    ]
    starts = torch.stack(is_valid).any(dim=0).nonzero()[:, 0]
    attend = _ChainAttention(batch, model.config.window, starts)
    hidden = model.fuse(batch.features)
    hidden = model(embed(batch.token_ids[targets[0]]), hidden, model.rotary(hidden, batch.positions), attend, starts)
    yield Pass(starts, hidden, targets[0][starts], is_valid[0][starts])
    for depth in range(1, num_passes):
        target_index = targets[depth][starts]
        rotary = model.rotary(hidden, batch.positions[starts] + depth)
        hidden = model(embed(batch.token_ids[target_index]), hidden, rotary, attend)
        yield Pass(starts, hidden, target_index, is_valid[depth][starts])


class _ChainAttention:
    """Attention of all passes: within each sample over the first pass's keys, elementwise over the chain's own."""

    def __init__(self, batch: PackedBatch, window: int, starts: Tensor) -> None:
        self._window = window
        self._starts = starts
        num_rows = batch.sample_of[starts].bincount(minlength=len(batch.blocks())).tolist()
        ends = list(accumulate(num_rows))
        # Samples do not see each other, so each is a product of its own: one over the whole batch would mostly compute
        # what the mask then hides.
        rows = [slice(end - count, end) for end, count in zip(ends, num_rows, strict=True)]
        self._blocks = [(block, row) for block, row in zip(batch.blocks(), rows, strict=True) if row.stop > row.start]
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def __call__(self, query_TNH: Tensor, key_TKH: Tensor, value_TKH: Tensor) -> Tensor:
        groups = query_TNH.shape[1] // key_TKH.shape[1]
        if not self._keys:
            query_TNH = query_TNH[self._starts]
        self._keys.append(key_TKH.repeat_interleave(groups, dim=1))
        self._values.append(value_TKH.repeat_interleave(groups, dim=1))
        query_TNH = query_TNH * query_TNH.shape[-1] ** -0.5
        return torch.cat([self._attend(query_TNH[rows], block, rows) for block, rows in self._blocks])

    def _attend(self, query_TNH: Tensor, block: slice, rows: slice) -> Tensor:
        query_NTH = query_TNH.transpose(0, 1)
        key_NSH, value_NSH = (parts[0][block].transpose(0, 1) for parts in (self._keys, self._values))
        own = [(key[rows].transpose(0, 1), value[rows].transpose(0, 1)) for key, value in self._chain()]
        window = self._window - len(own)  # deeper tokens stand further on
        visible_TS = visible_positions(self._starts[rows] - block.start, key_NSH.shape[1], window)
        bias = query_NTH.new_zeros(visible_TS.shape).masked_fill_(~visible_TS, -torch.inf)
        scores = [query_NTH @ key_NSH.transpose(1, 2) + bias]
        scores += [(query_NTH * key).sum(-1, keepdim=True) for key, _ in own]
        weights_NTS = torch.cat(scores, dim=-1).softmax(dim=-1)
        num_keys = key_NSH.shape[1]
        output_NTH = weights_NTS[..., :num_keys] @ value_NSH
        for place, (_, value) in enumerate(own):
            output_NTH = output_NTH + weights_NTS[..., num_keys + place, None] * value
        return output_NTH.transpose(0, 1)

    def _chain(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields keys and values of the passes after the first, which a row alone sees."""
        return zip(self._keys[1:], self._values[1:], strict=True)


def visible_positions(places: Tensor, num_positions: int, window: int) -> Tensor:
    """Returns which positions of a sample are seen from some of them: not after, fewer than ``window`` before.

    Args:
        places: ``[R]`` int64. Positions within the sample that look.
        num_positions: of the sample.
        window: positions that are seen, the own included.

    Returns:
        ``[R, num_positions]`` bool.
    """
    distance = places[:, None] - torch.arange(num_positions, device=places.device)
    return (distance >= 0) & (distance < window)
