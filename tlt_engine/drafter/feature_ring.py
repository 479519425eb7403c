"""The target's features of each request's latest positions, as the target gave them.

Raw and not fused, because new drafter weights change the fusion; a ring, because a window is all that is ever read.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class _Extent:
    slot: int
    start: int
    end: int


class FeatureRing:
    """Features by request and position; a request that is not written for a while starts anew."""

    def __init__(
        self, num_slots: int, window: int, width: int, *, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        """Allocates all memory there will ever be.

        Args:
            num_slots: most requests held at a time.
            window: positions kept of each.
            width: numbers of one position.
            dtype: of the target's hidden states.
            device: where the target runs.
        """
        self.window = window
        self._features = torch.zeros(num_slots, window, width, dtype=dtype, device=device)
        self._extents: dict[str, _Extent] = {}
        self._free = list(range(num_slots - 1, -1, -1))

    def __contains__(self, req_id: str) -> bool:
        return req_id in self._extents

    def __len__(self) -> int:
        return len(self._extents)

    def admit(self, req_id: str) -> bool:
        """Gives a request a slot if it has none; returns whether it has one now."""
        if req_id in self._extents:
            return True
        if not self._free:
            return False
        self._extents[req_id] = _Extent(self._free.pop(), 0, 0)
        return True

    def drop(self, req_id: str) -> None:
        """Frees the slot of a request, if it has one."""
        extent = self._extents.pop(req_id, None)
        if extent is not None:
            self._free.append(extent.slot)

    def extent(self, req_id: str) -> tuple[int, int]:
        """Returns the positions that are held of an admitted request, half-open."""
        extent = self._extents[req_id]
        return extent.start, extent.end

    def slot(self, req_id: str) -> int:
        """Returns the slot of an admitted request."""
        return self._extents[req_id].slot

    def reserve(self, req_id: str, first_position: int, num_positions: int) -> tuple[int, int]:
        """Makes room for a request's next positions, which the caller then writes.

        A gap or a step back, as after preemption, drops what was held.

        Args:
            req_id: an admitted request.
            first_position: position of the first one.
            num_positions: how many follow one another.

        Returns:
            How many of the first ones to leave out because later ones would overwrite them, and the slot.
        """
        extent = self._extents[req_id]
        if first_position != extent.end:
            extent.start = first_position
        extent.end = first_position + num_positions
        extent.start = max(extent.start, extent.end - self.window)
        return max(0, num_positions - self.window), extent.slot

    def write(self, slots: Tensor, positions: Tensor, parts: list[Tensor], rows: Tensor) -> None:
        """Copies features to reserved places.

        Args:
            slots: ``[num_rows]`` int64.
            positions: ``[num_rows]`` int64.
            parts: hidden states ``[all_rows, hidden]`` of the layers that make up a feature, in order.
            rows: ``[num_rows]`` int64. The rows to take of each part.
        """
        places = positions % self.window
        offset = 0
        for part in parts:
            size = part.shape[-1]
            self._features[slots, places, offset : offset + size] = part[rows].to(self._features.dtype)
            offset += size

    def read(self, req_id: str, start: int, end: int) -> Tensor:
        """Returns the features of positions that are held, ``[end - start, width]``."""
        extent = self._extents[req_id]
        assert extent.start <= start <= end <= extent.end
        places = torch.arange(start, end, device=self._features.device) % self.window
        return self._features[extent.slot, places]

    @property
    def device(self) -> torch.device:
        """Where the features are."""
        return self._features.device

    def num_bytes(self) -> int:
        """Returns the memory it holds from the start to the end."""
        return self._features.nbytes
