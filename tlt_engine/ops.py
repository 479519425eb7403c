"""The native ops as typed functions; importing this loads ``tlt_engine._C``.

A verify row is a position that the target scores in a step: row 0 of a request is its root, the last emitted token;
its draft nodes follow in topological order. Rows of all requests lie one after the other, ``cu_num_rows`` holds the
prefix sums.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

try:
    import tlt_engine._C  # noqa: F401 - registers torch.ops.tlt_engine
except ImportError as error:
    raise RuntimeError(
        "tlt_engine's extension is not built for this Python and torch; run 'make build' in the repository, "
        f"or reinstall tlt-engine: {error}"
    ) from error


def tree_accept(
    parent_rows: Tensor, draft_token_ids: Tensor, target_token_ids: Tensor, cu_num_rows: Tensor, max_accepted: int
) -> tuple[Tensor, Tensor]:
    """Follows each draft tree along the tokens the target chose.

    From the root the walk descends to the child whose draft token the target chose after its parent, the first such
    child if several name that token, until there is none.

    Args:
        parent_rows: ``[total_rows]`` int32. Row of the parent inside the request, smaller than the row's own; -1 at
            roots.
        draft_token_ids: ``[total_rows]`` int64. Token of each node; negative ones match nothing, roots are not read.
        target_token_ids: ``[total_rows]`` int64. Token the target chose after each row; -1 where it is not known yet.
        cu_num_rows: ``[num_reqs + 1]`` int32. Prefix sums of the rows of each request.
        max_accepted: width of the result, at least the rows of the largest request minus 1.

    Returns:
        ``accepted_rows`` ``[num_reqs, max_accepted]`` int32: rows inside the request in path order, root excluded,
        padded with -1; and ``num_accepted`` ``[num_reqs]`` int32. The bonus token is not counted: a request emits
        ``num_accepted + 1`` tokens. Does not synchronise.

    Raises:
        RuntimeError: a shape, dtype or device differs from the above.

    Source: SpecInfer (arXiv:2305.09781), verification of a token tree.
    """
    return torch.ops.tlt_engine.tree_accept.default(
        parent_rows, draft_token_ids, target_token_ids, cu_num_rows, max_accepted
    )


def tree_build(scores: Tensor, parents: Tensor, max_nodes: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Picks the likeliest nodes of each request's candidates as a tree, parents before children.

    Args:
        scores: ``[num_reqs, num_candidates]`` float32. Log-probability of the path to each candidate, not larger than
            its parent's; not NaN.
        parents: ``[num_reqs, num_candidates]`` int32. Candidate that each one follows, smaller than its own index; -1
            for children of the root.
        max_nodes: ``[num_reqs]`` int32. Most nodes of each request's tree.
        width: most nodes of any, the width of the result.

    Returns:
        ``nodes`` ``[num_reqs, width]`` int32: the candidates picked, the likeliest first, padded with -1; and
        ``parents`` ``[num_reqs, width]`` int32: place of each one's parent in its row, -1 for children of the root and
        padding. Does not synchronise.

    Raises:
        RuntimeError: a shape, dtype or device differs from the above.

    Source: EAGLE-2 (arXiv:2406.16858), re-ranking by cumulative probability.
    """
    return torch.ops.tlt_engine.tree_build.default(scores, parents, max_nodes, width)


def draft_topk(
    logits: Tensor, vocabulary: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor, top_k: int
) -> tuple[Tensor, Tensor]:
    """Picks each node's likeliest next tokens, given the noise that the target's draw will add (CPU).

    Args:
        logits: ``[num_reqs, num_nodes, draft_vocab]`` float32.
        vocabulary: ``[draft_vocab]`` int64. Token id of each entry, ascending.
        temperature: ``[num_reqs]`` float32. Below 1e-5 the target is greedy: no noise, and logits as they are.
        seeds: ``[num_reqs]`` int64. Key of the noise.
        positions: ``[num_reqs]`` int64. Output position the tokens are drawn for.
        top_k: how many.

    Returns:
        ``[num_reqs, num_nodes, top_k]`` float32: log-softmax of ``logits / temperature + noise`` at the largest
        entries, largest first, smaller index first among equals; NaN if a logit of the node is. And int64: their
        indices into the draft vocabulary.

    Raises:
        RuntimeError: a shape, dtype or value differs from the above.
    """
    return torch.ops.tlt_engine.draft_topk.default(logits, vocabulary, temperature, seeds, positions, top_k)


def window_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    starts: Tensor,
    ends: Tensor,
    visible: Tensor,
    num_scratch: int,
    depth: int,
) -> Tensor:
    """Lets tree nodes attend to the latest window of their request and to the tree nodes they see (CPU).

    Args:
        query: ``[num_reqs, num_nodes, num_heads, head_size]`` float32.
        keys: ``[num_slots, num_kv_heads, head_size, num_places]`` float32. Scratch places first, the newest level's
            before older ones and the last ending at ``num_scratch``; then the ring of the window, position ``p`` in
            place ``num_scratch + p % window``.
        values: ``[num_slots, num_kv_heads, num_places, head_size]`` float32, in the same places.
        slots: ``[num_reqs]`` int64.
        starts: ``[num_reqs]`` int64. First position whose key is there.
        ends: ``[num_reqs]`` int64. The position after the newest whose key is there.
        visible: ``[num_reqs, num_nodes, num_seen]`` bool. Which of the last ``num_seen`` scratch places a node sees.
        num_scratch: scratch places.
        depth: positions between the newest key of the window and the nodes.

    Returns:
        ``[num_reqs, num_nodes, num_heads, head_size]`` float32.

    Raises:
        RuntimeError: a shape, dtype or value differs from the above.
    """
    return torch.ops.tlt_engine.window_attention.default(
        query, keys, values, slots, starts, ends, visible, num_scratch, depth
    )


def gumbel_argmax(logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Draws one token a row from the softmax of its scaled logits, by noise that (seed, position) alone decides.

    Args:
        logits: ``[num_rows, vocab]`` float32, bfloat16 or float16. The entries of a row lie together.
        temperature: ``[num_rows]`` float32. Below 1e-5 the row is greedy: its first largest logit.
        seeds: ``[num_rows]`` int64. Key of the noise.
        positions: ``[num_rows]`` int64. Output position the token is drawn for; rows that share seed and position
            share their noise.

    Returns:
        ``[num_rows]`` int64. The first token with the largest ``logit / temperature + noise``; a token of the
        vocabulary even if every logit is NaN. Does not synchronise.

    Raises:
        RuntimeError: a shape, dtype or device differs from the above.

    Source: Gumbel-max sampling; Philox4x32-10 (Salmon et al., SC 2011) as the generator.
    """
    return torch.ops.tlt_engine.gumbel_argmax.default(logits, temperature, seeds, positions)


def gumbel_noise(seeds: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
    """Returns the noise that ``gumbel_argmax`` adds to single tokens, which is known before the logits are (CPU).

    Args:
        seeds: ``[n]`` int64. Seed of each token's request.
        positions: ``[n]`` int64. Output position of each token.
        token_ids: ``[n]`` int64. The tokens, not negative.

    Returns:
        ``[n]`` float32. Standard Gumbel noise, up to rounding what the draw sees.

    Raises:
        RuntimeError: a shape or dtype differs from the above.
    """
    return torch.ops.tlt_engine.gumbel_noise.default(seeds, positions, token_ids)


def kv_compact(planes: Sequence[Tensor], src_slots: Tensor, dst_slots: Tensor, cu_moves: Tensor) -> None:
    """Moves the keys and values of accepted rows to the slots where plain decoding would have put them, in place.

    Args:
        planes: keys and values of every layer, each ``[num_blocks, block_size, num_kv_heads, head_size]`` with any
            strides and a dtype of 1, 2 or 4 bytes; modified in place.
        src_slots: ``[num_moves]`` int64. Slots to move from, ``block * block_size + offset``.
        dst_slots: ``[num_moves]`` int64. Slots to move to. Moves of one request are carried out in order; a destination
            must be no source of a later move of its request, nor a slot of another request.
        cu_moves: ``[num_reqs + 1]`` int32. Prefix sums of the moves of each request.

    Raises:
        RuntimeError: a shape, dtype or device differs from the above, or on CPU a slot does not exist.
    """
    torch.ops.tlt_engine.kv_compact.default(planes, src_slots, dst_slots, cu_moves)


def tree_attention(
    out: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    req_indices: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    cu_num_rows: Tensor,
    depths: Tensor,
    ancestor_masks: Tensor,
    scale: float,
    sliding_window: int = -1,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> None:
    """Lets every row of the listed trees attend to its request's context and to the rows its mask names (CPU).

    Args:
        out: ``[num_tokens, num_heads, head_size]``. Receives the rows of the trees; other rows stay as they are.
        query: ``[num_tokens, num_heads, head_size]`` float32, bfloat16 or float16, as are the caches and ``out``.
        key_cache: ``[num_blocks, num_kv_heads, head_size, block_size]``, slots of a block together.
        value_cache: ``[num_blocks, num_kv_heads, block_size, head_size]``, entries of a slot together.
        block_table: ``[max_reqs, max_blocks]`` int32. Blocks of each request.
        req_indices: ``[num_trees]`` int32. Row of the block table of each tree.
        query_starts: ``[num_trees]`` int32. Query row of each root; the tree's rows follow.
        context_lens: ``[num_trees]`` int32. Committed slots before each root; row ``r``'s own K/V lies in slot index
            ``context_len + r``.
        cu_num_rows: ``[num_trees + 1]`` int32. Prefix sums of the rows of each tree.
        depths: ``[total_rows]`` int32. Distance from the root; the row's position is ``context_len + depth``.
        ancestor_masks: ``[total_rows, words]`` int64. Bit ``j % 64`` of word ``j // 64``: the row sees row ``j``.
        scale: factor of the scores.
        sliding_window: positions a row sees, itself included; no window if not positive.
        softcap: if positive, scores become ``softcap * tanh(score / softcap)``.
        sinks: ``[num_heads]`` float32. A logit per head that joins the denominator only.

    Raises:
        RuntimeError: a shape, stride, dtype or index differs from the above.

    Source: SpecInfer (arXiv:2305.09781), tree-based attention; online softmax as in FlashAttention (arXiv:2205.14135).
    """
    torch.ops.tlt_engine.tree_attention.default(
        out,
        query,
        key_cache,
        value_cache,
        block_table,
        req_indices,
        query_starts,
        context_lens,
        cu_num_rows,
        depths,
        ancestor_masks,
        scale,
        sliding_window,
        softcap,
        sinks,
    )


@torch.library.register_fake("tlt_engine::tree_accept")
def _tree_accept_fake(
    parent_rows: Tensor, draft_token_ids: Tensor, target_token_ids: Tensor, cu_num_rows: Tensor, max_accepted: int
) -> tuple[Tensor, Tensor]:
    num_reqs = cu_num_rows.shape[0] - 1
    return parent_rows.new_empty((num_reqs, max_accepted)), parent_rows.new_empty((num_reqs,))


@torch.library.register_fake("tlt_engine::tree_build")
def _tree_build_fake(scores: Tensor, parents: Tensor, max_nodes: Tensor, width: int) -> tuple[Tensor, Tensor]:
    shape = (scores.shape[0], width)
    return parents.new_empty(shape), parents.new_empty(shape)


@torch.library.register_fake("tlt_engine::draft_topk")
def _draft_topk_fake(
    logits: Tensor, vocabulary: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor, top_k: int
) -> tuple[Tensor, Tensor]:
    shape = (*logits.shape[:2], top_k)
    return logits.new_empty(shape), vocabulary.new_empty(shape)


@torch.library.register_fake("tlt_engine::window_attention")
def _window_attention_fake(query: Tensor, *args: object) -> Tensor:
    return torch.empty_like(query)


@torch.library.register_fake("tlt_engine::gumbel_argmax")
def _gumbel_argmax_fake(logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    return seeds.new_empty((logits.shape[0],))


@torch.library.register_fake("tlt_engine::gumbel_noise")
def _gumbel_noise_fake(seeds: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
    return seeds.new_empty(seeds.shape, dtype=torch.float32)


@torch.library.register_fake("tlt_engine::kv_compact")
def _kv_compact_fake(planes: Sequence[Tensor], src_slots: Tensor, dst_slots: Tensor, cu_moves: Tensor) -> None:
    return None


@torch.library.register_fake("tlt_engine::tree_attention")
def _tree_attention_fake(out: Tensor, *args: object) -> None:
    return None
