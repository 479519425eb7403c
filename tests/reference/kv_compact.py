"""KV compaction through a dictionary of slots: every slot is read out, moved as a value, and written back."""

import numpy as np
import torch
from torch import Tensor


def kv_compact(planes: list[Tensor], moves: list[list[tuple[int, int]]]) -> list[Tensor]:
    """Returns copies of the planes (same shapes) after each request's moves, carried out in order."""
    return [_compacted(plane, moves) for plane in planes]


def _compacted(plane: Tensor, moves: list[list[tuple[int, int]]]) -> Tensor:
    num_blocks, block_size = plane.shape[:2]
    elements = plane.contiguous().view(torch.uint8).numpy()
    slots = {
        block * block_size + offset: elements[block, offset].copy()
        for block in range(num_blocks)
        for offset in range(block_size)
    }
    for request in moves:
        for source, destination in request:
            slots[destination] = slots[source].copy()
    stacked = np.stack([slots[slot] for slot in range(num_blocks * block_size)])
    return torch.from_numpy(stacked.reshape(elements.shape)).view(plane.dtype)
