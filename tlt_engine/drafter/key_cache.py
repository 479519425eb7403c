"""Keys and values of the drafter: the latest window of each request, and scratch places for the tree that grows.

They are not kept in vLLM's cache: speculation can start at any step from the features of the ring, new weights make
them anew, and their memory is known from the start.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tlt_engine.drafter.config import DrafterConfig


@dataclass
class _Extent:
    start: int
    end: int


class KeyCache:
    """One row of places a slot: scratch first, growing towards the front, then the ring of the window."""

    def __init__(
        self,
        config: DrafterConfig,
        num_slots: int,
        num_scratch: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (num_slots, config.num_key_value_heads, num_scratch + config.window, config.head_dim)
        self._keys = torch.zeros(shape, dtype=dtype, device=device)
        self._values = torch.zeros(shape, dtype=dtype, device=device)
        self._window = config.window
        self._num_scratch = num_scratch
        self._extents = [_Extent(0, 0) for _ in range(num_slots)]

    def forget(self, slot: int | None = None) -> None:
        """Drops the keys of a slot, or of all after a change of weights."""
        for extent in self._extents if slot is None else [self._extents[slot]]:
            extent.start = extent.end = 0

    def missing(self, slot: int, features_start: int, end: int) -> int:
        """Returns the first position up to ``end`` whose key is not there, given where features begin.

        Keys before a gap are dropped.
        """
        extent = self._extents[slot]
        first = max(features_start, end - self._window)
        if not first <= extent.end <= end:
            extent.start = extent.end = first
        return extent.end

    def append(self, slot: int, keys: Tensor, values: Tensor) -> None:
        """Adds the keys and values ``[num_positions, kv_heads, head_dim]`` of the next positions of a slot."""
        extent = self._extents[slot]
        places = torch.arange(extent.end, extent.end + len(keys), device=keys.device) % self._window
        self._keys[slot, :, self._num_scratch + places] = keys.transpose(0, 1)
        self._values[slot, :, self._num_scratch + places] = values.transpose(0, 1)
        extent.end += len(keys)
        extent.start = max(extent.start, extent.end - self._window)

    def put_scratch(self, slots: Sequence[int], keys: Tensor, values: Tensor, num_before: int) -> None:
        """Keeps the keys and values ``[num_slots, nodes, kv_heads, head_dim]`` of tree nodes until the next tree."""
        last = self._num_scratch - num_before
        first = last - keys.shape[1]
        for place, slot in enumerate(slots):
            self._keys[slot, :, first:last] = keys[place].transpose(0, 1)
            self._values[slot, :, first:last] = values[place].transpose(0, 1)

    def attend(self, slot: int, query: Tensor, scratch_bias: Tensor, depth: int) -> Tensor:
        """Attends to a slot's window and to scratch nodes.

        Args:
            slot: the slot.
            query: ``[rows, heads, head_dim]``.
            scratch_bias: ``[rows, nodes]``. 0 where a row sees a scratch node, else minus infinity; newest level first.
            depth: how far the rows' position is past the newest key of the window.

        Returns:
            ``[rows, heads, head_dim]``.
        """
        rows, num_heads, head_dim = query.shape
        extent = self._extents[slot]
        num_scratch, length = scratch_bias.shape[1], extent.end - extent.start
        if extent.end > self._window:
            places = slice(self._num_scratch - num_scratch, self._num_scratch + self._window)
            held = torch.arange(self._window)
            age = (extent.end - 1 - held) % self._window
            window_bias = torch.zeros(self._window).masked_fill_(
                (age >= length) | (age + depth >= self._window), -torch.inf
            )
        else:
            places = slice(self._num_scratch - num_scratch, self._num_scratch + extent.end)
            window_bias = torch.zeros(extent.end)
            window_bias[: extent.start] = -torch.inf
            window_bias[: max(0, extent.end + depth - self._window)] = -torch.inf
        bias = torch.cat([scratch_bias, window_bias.to(scratch_bias).expand(rows, -1)], dim=1)
        keys, values = self._keys[slot, :, places], self._values[slot, :, places]
        groups = num_heads // keys.shape[0]
        grouped = (query * head_dim**-0.5).unflatten(1, (-1, groups)).permute(1, 2, 0, 3).flatten(1, 2)
        weights = torch.baddbmm(bias.repeat(groups, 1).expand(len(keys), -1, -1), grouped, keys.transpose(1, 2))
        output = torch.bmm(weights.softmax(dim=-1), values)
        return output.unflatten(1, (groups, rows)).permute(2, 0, 1, 3).flatten(1, 2)

    def num_bytes(self) -> int:
        """Returns the memory it holds from the start to the end."""
        return self._keys.nbytes + self._values.nbytes
