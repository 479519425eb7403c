"""CUDA attention: stock's own. No stock kernel takes a tree mask, so draft rows follow one another there."""

from typing import Any

import torch
from torch import Tensor

TAKES_ALL_DECODES = False


def token_planes(kv_cache: Tensor) -> list[Tensor]:
    """Views FlashAttention's cache as K and V planes ``[num_blocks, block_size, num_kv_heads, head_size]``.

    Args:
        kv_cache: ``[num_blocks, num_kv_heads, block_size, 2 * head_size]`` in any stride order.
    """
    return list(kv_cache.transpose(1, 2).chunk(2, dim=-1))


def unreadable_reason(impl: Any, layer: Any, cache_dtype: torch.dtype) -> str | None:  # noqa: ARG001
    """Returns why this layer cannot verify branching trees: on CUDA always, for want of a masked kernel."""
    return f"{type(impl).__name__} has no tree mask"
