"""CPU attention of decoding requests: a row sees its context and its ancestors; prefills stay with stock."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.v1.attention.backend import AttentionLayer, CommonAttentionMetadata
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)

from tlt_engine import ops
from tlt_engine.worker.tree_rows import TreeRows

TAKES_ALL_DECODES = True
"""Rows without drafts and chains go through the tree kernel, too: on single rows it takes 0.76 of stock's time (median
over batches and contexts; from 0.51 to 1.22), and a step that mixes query lengths costs stock's kernel a fifth
(``benchmarks/bench_attention.py``)."""

READABLE_ISAS = ("vec", "vec16")
"""Cache layouts the kernel reads: K transposed inside a block, V row-major. Packed AMX and NEON layouts are not."""


@dataclass
class TreeCPUAttentionMetadata(CPUAttentionMetadata):
    """Stock's metadata and the trees of the step."""

    trees: TreeRows | None = None


class TreeCPUAttentionMetadataBuilder(CPUAttentionMetadataBuilder):
    """Stock's builder; the runner leaves the step's trees here before it builds."""

    trees: TreeRows | None = None

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> TreeCPUAttentionMetadata:
        """Builds stock's metadata, in which the rows of trees see nothing: their attention is computed by us."""
        if self.trees is not None:
            common_attn_metadata = copy.copy(common_attn_metadata)
            common_attn_metadata.seq_lens = common_attn_metadata.seq_lens.index_copy(
                0, self.trees.req_indices.long(), self.trees.cu_num_rows.diff()
            )
        stock = super().build(common_prefix_len, common_attn_metadata, fast_build)
        return TreeCPUAttentionMetadata(**vars(stock), trees=self.trees)


class TreeCPUAttentionImpl(CPUAttentionBackendImpl):
    """Stock's attention, with the rows of decoding requests computed by the tree kernel."""

    _split_cache: tuple[Tensor, Tensor, Tensor] | None = None
    """The layer's cache and its two views; making them anew costs half a millisecond a step over 30 layers."""

    def forward(
        self,
        layer: AttentionLayer,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: TreeCPUAttentionMetadata | None,
        output: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """Computes attention of the step; the contract is stock's."""
        trees = attn_metadata.trees if attn_metadata is not None else None
        if trees is None or not trees.covers_batch:
            super().forward(layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs)
        if attn_metadata is not None and trees is not None:
            if self._split_cache is None or self._split_cache[0] is not kv_cache:
                self._split_cache = (kv_cache, *split_kv_cache(kv_cache))
            _, key_cache, value_cache = self._split_cache
            ops.tree_attention(
                output.view(query.shape),
                query,
                key_cache,
                value_cache,
                attn_metadata.block_table,
                trees.req_indices,
                trees.query_starts,
                trees.context_lens,
                trees.cu_num_rows,
                trees.depths,
                trees.ancestor_masks,
                self.scale,
                self.sliding_window,
                float(self.logits_soft_cap),
                None if self.sinks is None else self.sinks.float(),
            )
        return output


class TreeCPUAttentionBackend(CPUAttentionBackend):
    """Registered in place of ``CPU_ATTN``; the name stays, because stock looks it up in its enumeration."""

    @staticmethod
    def get_impl_cls() -> type[CPUAttentionBackendImpl]:
        """Returns the implementation class."""
        return TreeCPUAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[CPUAttentionMetadataBuilder]:
        """Returns the metadata builder class."""
        return TreeCPUAttentionMetadataBuilder


def split_kv_cache(kv_cache: Tensor) -> tuple[Tensor, Tensor]:
    """Views stock's CPU cache as K ``[blocks, kv_heads, head_size, block_size]`` and V ``[.., block_size, head_size]``.

    Args:
        kv_cache: ``[num_blocks, num_kv_heads, block_size, 2 * head_size]``; inside a block and head lie first all of K,
            transposed, then all of V.
    """
    num_blocks, num_kv_heads, block_size, width = kv_cache.shape
    halves = kv_cache.view(num_blocks, num_kv_heads, 2, block_size * width // 2)
    keys = halves[:, :, 0].view(num_blocks, num_kv_heads, width // 2, block_size)
    return keys, halves[:, :, 1].view(num_blocks, num_kv_heads, block_size, width // 2)


def token_planes(kv_cache: Tensor) -> list[Tensor]:
    """Views stock's CPU cache as K and V planes ``[num_blocks, block_size, num_kv_heads, head_size]``."""
    keys, values = split_kv_cache(kv_cache)
    return [keys.permute(0, 3, 1, 2), values.transpose(1, 2)]


def unreadable_reason(impl: Any, layer: Any, cache_dtype: torch.dtype) -> str | None:
    """Returns why the kernel cannot verify trees with this layer's cache, or None."""
    isa = getattr(layer, "isa", None)
    if not isinstance(impl, TreeCPUAttentionImpl):
        return f"attention of {type(impl).__name__} has no tree mask"
    if isa not in READABLE_ISAS:
        return f"the KV cache has the packed layout {isa!r}"
    if impl.is_fp8_kv_cache or cache_dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"the KV cache has dtype {cache_dtype}"
    if impl.alibi_slopes is not None:
        return "ALiBi biases by slot, not by depth"
    return None
