"""Keys and values of the drafter: the latest window of each request, and scratch places for the tree that grows.

They are not kept in vLLM's cache: speculation can start at any step from the features of the ring, new weights make
them anew, and their memory is known from the start.

Shape suffixes: B requests, K tree nodes of a level, N heads, H head size, S scratch nodes; T positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tlt_engine import ops
from tlt_engine.drafter.config import DrafterConfig


@dataclass
class _Extent:
    start: int
    end: int


class KeyCache:
    """One row of places a slot: scratch first, growing towards the front, then the ring of the window.

    Keys lie with the places innermost, so that the scores of neighbouring places come out of one vector register.
    """

    def __init__(
        self,
        config: DrafterConfig,
        num_slots: int,
        num_scratch: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        num_heads, head_size, num_places = config.num_key_value_heads, config.head_dim, num_scratch + config.window
        self._keys = torch.zeros((num_slots, num_heads, head_size, num_places), dtype=dtype, device=device)
        self._values = torch.zeros((num_slots, num_heads, num_places, head_size), dtype=dtype, device=device)
        self._window = config.window
        self._num_scratch = num_scratch
        self._extents = [_Extent(0, 0) for _ in range(num_slots)]

    def forget(self, slot: int | None = None) -> None:
        """Drops the keys of a slot, or of all after a change of weights.

        Places that are not seen are read and weighed with 0, so nothing that is no number may stay in them.
        """
        for place in range(len(self._extents)) if slot is None else [slot]:
            self._extents[place] = _Extent(0, 0)
            self._keys[place].zero_()
            self._values[place].zero_()

    def missing(self, slot: int, features_start: int, end: int) -> int:
        """Returns the first position up to ``end`` whose key is not there, given where features begin.

        Keys before a gap are dropped.
        """
        extent = self._extents[slot]
        first = max(features_start, end - self._window)
        if not first <= extent.end <= end:
            extent.start = extent.end = first
        return extent.end

    def put(self, slots_T: Tensor, positions_T: Tensor, keys_TNH: Tensor, values_TNH: Tensor) -> None:
        """Keeps keys and values of positions, whichever slots they belong to; ``advance`` says that they are whole."""
        places = self._num_scratch + positions_T % self._window
        self._keys[slots_T, :, :, places] = keys_TNH
        self._values[slots_T, :, places] = values_TNH

    def advance(self, slot: int, end: int) -> None:
        """Counts the positions of a slot up to ``end`` as kept."""
        extent = self._extents[slot]
        extent.end = end
        extent.start = max(extent.start, end - self._window)

    def put_scratch(self, slots: Tensor, keys_BKNH: Tensor, values_BKNH: Tensor, num_before: int) -> None:
        """Keeps keys and values of a level's tree nodes, before those of earlier levels, until the next tree."""
        last = self._num_scratch - num_before
        first = last - keys_BKNH.shape[1]
        self._keys[slots, :, :, first:last] = keys_BKNH.permute(0, 2, 3, 1)
        self._values[slots, :, first:last] = values_BKNH.transpose(1, 2)

    def attend(self, slots: Sequence[int], query_BKNH: Tensor, visible_BKS: Tensor, depth: int) -> Tensor:
        """Attends to each slot's window and to scratch nodes.

        Args:
            slots: the ``B`` slots.
            query_BKNH: queries.
            visible_BKS: bool. Which scratch nodes each row sees; newest level first.
            depth: how far the rows' position is past the newest key of the window.

        Returns:
            ``[B, K, N, H]``.
        """
        if query_BKNH.device.type != "cpu" or query_BKNH.dtype != torch.float32:
            rows = zip(slots, query_BKNH, visible_BKS, strict=True)
            return torch.stack([self._attend(slot, query, visible, depth) for slot, query, visible in rows])
        starts, ends = zip(*((self._extents[slot].start, self._extents[slot].end) for slot in slots), strict=True)
        return ops.window_attention(
            query_BKNH.contiguous(),
            self._keys,
            self._values,
            torch.tensor(slots),
            torch.tensor(starts),
            torch.tensor(ends),
            visible_BKS,
            self._num_scratch,
            depth,
        )

    def _attend(self, slot: int, query_KNH: Tensor, visible_KS: Tensor, depth: int) -> Tensor:
        """The same by matrix products, for one slot on any device."""
        extent = self._extents[slot]
        places = slice(self._num_scratch - visible_KS.shape[1], self._num_scratch + min(extent.end, self._window))
        held = torch.arange(places.stop - self._num_scratch, device=query_KNH.device)
        age = (extent.end - 1 - held) % self._window
        is_seen = (age < extent.end - extent.start) & (age < self._window - depth)
        is_seen = torch.cat([visible_KS, is_seen.expand(len(visible_KS), -1)], dim=1)
        groups = query_KNH.shape[1] // self._keys.shape[1]
        query_NKH = query_KNH.transpose(0, 1) * query_KNH.shape[-1] ** -0.5
        keys, values = self._keys[slot, :, :, places], self._values[slot, :, places]
        scores = query_NKH @ keys.repeat_interleave(groups, dim=0)
        weights = scores.masked_fill(~is_seen, -torch.inf).softmax(dim=-1)
        return (weights @ values.repeat_interleave(groups, dim=0)).transpose(0, 1)

    def num_bytes(self) -> int:
        """Returns the memory it holds from the start to the end."""
        return self._keys.nbytes + self._values.nbytes
