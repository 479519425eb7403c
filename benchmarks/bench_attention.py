"""Tree attention against stock's causal kernel on the same rows and context, on CPU, interleaved in one process."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import torch

from benchmarks.machine import new_result
from benchmarks.measure import print_rows
from benchmarks.result import Row, summarise
from tlt_engine import ops

HEADS = ((9, 3, 64), (32, 8, 128))
"""Query heads, kv heads, head size: SmolLM2-135M's and those of an 8B model."""
BATCHES = (1, 4, 8)
CONTEXTS = (128, 512, 1024, 4096)
ROWS = (1, 4, 8, 16, 32)
BLOCK_SIZE = 128
MIN_SECONDS = 3e-4
"""Calls are repeated within one timing until it lasts this long."""


def make_kernels(
    heads: tuple[int, int, int], batch: int, context: int, rows: int, dtype: torch.dtype
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Returns stock's kernel and ours on the same input, after checking that they agree."""
    import vllm._custom_ops as stock_ops

    num_heads, num_kv_heads, head_size = heads
    blocks_per_req = -(-(context + rows) // BLOCK_SIZE)
    cache = torch.randn(batch * blocks_per_req, num_kv_heads, BLOCK_SIZE, 2 * head_size).to(dtype)
    halves = cache.view(len(cache), num_kv_heads, 2 * BLOCK_SIZE, head_size)
    stock_keys, values = halves.chunk(2, dim=2)
    keys = cache.view(len(cache), num_kv_heads, 2, -1)[:, :, 0].view(len(cache), num_kv_heads, head_size, BLOCK_SIZE)
    block_table = torch.randperm(len(cache)).int().view(batch, blocks_per_req)
    query = torch.randn(batch * rows, num_heads, head_size).to(dtype)
    ours, theirs = torch.zeros_like(query), torch.zeros_like(query)
    seq_lens = torch.full((batch,), context + rows, dtype=torch.int32)
    starts = (torch.arange(batch + 1) * rows).int()
    scale = head_size**-0.5
    scheduling = stock_ops.cpu_attn_get_scheduler_metadata(
        num_reqs=batch,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_size,
        seq_lens=seq_lens,
        dtype=dtype,
        query_start_loc=starts,
        causal=True,
        sliding_window_size=-1,
        isa="vec",
        enable_kv_split=True,
    )

    def stock() -> None:
        stock_ops.cpu_attention_with_kv_cache(
            query=query,
            key_cache=stock_keys,
            value_cache=values,
            output=theirs,
            query_start_loc=starts,
            seq_lens=seq_lens,
            scale=scale,
            causal=True,
            alibi_slopes=None,
            sliding_window=-1,
            block_table=block_table,
            softcap=0.0,
            scheduler_metadata=scheduling,
            s_aux=None,
        )

    chain_masks = torch.tensor([(2 << row) - 1 for row in range(rows)] * batch).view(-1, 1)
    trees = (
        torch.arange(batch).int(),
        starts[:-1].clone(),
        torch.full((batch,), context, dtype=torch.int32),
        starts,
        torch.arange(rows).repeat(batch).int(),
        chain_masks,
    )

    def tree() -> None:
        ops.tree_attention(ours, query, keys, values, block_table, *trees, scale)

    stock()
    tree()
    error = float((ours.float() - theirs.float()).abs().max())
    # Both accumulate in float32; what is left is the rounding of the stored values, outputs being below 1.
    assert error < (1e-5 if dtype == torch.float32 else 2**-6), f"kernels differ by {error}"
    return stock, tree


def time_interleaved(kernels: tuple[Callable[[], None], ...], repetitions: int) -> list[list[float]]:
    """Returns seconds a call of each kernel, the kernels taking turns."""
    start = time.perf_counter()
    kernels[0]()
    calls = max(1, int(MIN_SECONDS / (time.perf_counter() - start)))
    seconds: list[list[float]] = [[] for _ in kernels]
    for _ in range(repetitions):
        for kernel, measured in zip(kernels, seconds, strict=True):
            start = time.perf_counter()
            for _ in range(calls):
                kernel()
            measured.append((time.perf_counter() - start) / calls)
    return seconds


def main() -> None:
    """Runs the benchmark, prints its rows and, unless ``--quick``, writes its file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_attention", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--quick", action="store_true", help="two cases, no file")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    torch.set_num_threads(arguments.threads)
    settings = {
        "threads": arguments.threads,
        "block_size": BLOCK_SIZE,
        "masks": "chains, so that stock can compute them",
    }
    result = new_result("attention", "benchmarks.bench_attention", settings)
    cases = [
        (dtype, heads, batch, context, rows)
        for dtype in (torch.float32, torch.bfloat16)
        for heads in HEADS
        for batch in BATCHES
        for context in CONTEXTS
        for rows in ROWS
    ]
    rows_of_result: list[Row] = []
    for dtype, heads, batch, context, rows in cases[: 2 if arguments.quick else None]:
        stock, tree = time_interleaved(make_kernels(heads, batch, context, rows, dtype), arguments.repetitions)
        rows_of_result.append(
            summarise(
                [1e6 * seconds for seconds in tree],
                baseline=("stock-causal-kernel", [1e6 * seconds for seconds in stock]),
                name="tree_attention",
                case=f"{str(dtype)[6:]} {heads[0]}/{heads[1]}x{heads[2]} batch={batch} context={context} rows={rows}",
                metric="us",
                unit="us",
            )
        )
    result.rows = rows_of_result
    print_rows(result.rows)
    ratios = sorted(row.ratio for row in result.rows if row.ratio is not None)
    print(f"stock's time over ours: smallest {ratios[0]:.2f}, median {ratios[len(ratios) // 2]:.2f}")
    if not arguments.quick:
        print(f"written: {result.write().name}")


if __name__ == "__main__":
    main()
