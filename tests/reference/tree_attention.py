"""Tree attention as one dense masked softmax per request; the oracle of the paged kernel.

Visibility is found by walking parents, not from ancestor bits, and the cache is read slot by slot.
"""

import torch
from torch import Tensor


def visible_slots(parent_rows: list[int], context_len: int, sliding_window: int) -> Tensor:
    """Marks what each row of one tree sees.

    Args:
        parent_rows: parent's row of each row, -1 at the root.
        context_len: committed slots before the root.
        sliding_window: positions a row sees, its own included; 0 or less sees all.

    Returns:
        ``[num_rows, context_len + num_rows]`` bool.
    """
    num_rows = len(parent_rows)
    visible = torch.zeros(num_rows, context_len + num_rows, dtype=torch.bool)
    for row in range(num_rows):
        path = [row]
        while parent_rows[path[-1]] >= 0:
            path.append(parent_rows[path[-1]])
        # Walking the path towards the root goes one position back per step, then on through the context.
        backwards = [context_len + node for node in path] + list(range(context_len - 1, -1, -1))
        visible[row, backwards[:sliding_window] if sliding_window > 0 else backwards] = True
    return visible


def tree_attention(
    query: Tensor,
    kv_cache: Tensor,
    block_ids: list[int],
    context_len: int,
    parent_rows: list[int],
    *,
    scale: float,
    sliding_window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Attends with the rows of one tree.

    Args:
        query: ``[num_rows, num_heads, head_size]``.
        kv_cache: ``[num_blocks, num_kv_heads, block_size, 2 * head_size]`` in vLLM's CPU "vec" layout.
        block_ids: the request's blocks in slot order.
        context_len: committed slots before the root.
        parent_rows: parent's row of each row, -1 at the root.
        scale: factor of the scores.
        sliding_window: positions a row sees, its own included; 0 or less sees all.
        softcap: bound of the scores; 0 is off.
        sinks: ``[num_heads]`` logits that join the denominator, or None.
        dtype: every product, softmax and sum is rounded to it.

    Returns:
        ``[num_rows, num_heads, head_size]`` of ``dtype``.
    """
    num_rows, num_heads, head_size = query.shape
    _, num_kv_heads, block_size, _ = kv_cache.shape
    flat = kv_cache.reshape(kv_cache.shape[0], num_kv_heads, 2, block_size * head_size)
    keys, values = [], []
    for slot in range(context_len + num_rows):
        block, offset = block_ids[slot // block_size], slot % block_size
        keys.append(flat[block, :, 0].view(num_kv_heads, head_size, block_size)[:, :, offset])
        values.append(flat[block, :, 1].view(num_kv_heads, block_size, head_size)[:, offset])
    key_of_head = torch.stack(keys, 1).to(dtype).repeat_interleave(num_heads // num_kv_heads, dim=0)
    value_of_head = torch.stack(values, 1).to(dtype).repeat_interleave(num_heads // num_kv_heads, dim=0)

    scores = query.to(dtype).transpose(0, 1) @ key_of_head.transpose(1, 2) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    hidden = ~visible_slots(parent_rows, context_len, sliding_window)
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(dtype).view(-1, 1, 1).expand(-1, num_rows, 1)], dim=2)
    weights = scores.softmax(dim=2)[:, :, : context_len + num_rows]
    return (weights @ value_of_head).transpose(0, 1)
