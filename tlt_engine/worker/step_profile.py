"""Start-up measurement of what a target step costs against its rows; the shape decides how many draft rows pay."""

import time
from typing import Any

import torch
from vllm.config import CUDAGraphMode
from vllm.distributed import get_tp_group

EVERY_SIZE_TO = 17
"""Up to here each row count is measured: matrix kernels work on blocks of 4, 6, 8 or 16 rows, and dips decide."""

LARGER_SIZES = (20, 24, 28, 32, 40, 48, 64, 96, 128)

TIME_LIMIT_SECONDS = 6.0
"""Large models get fewer rounds; after the first round of the sizes that fit, what was not measured is interpolated."""

MAX_ROUNDS = 5


def measure_step_profile(runner: Any, max_rows: int) -> dict[int, float]:
    """Times dummy steps of a loaded model, without attention to a context.

    Args:
        runner: stock's runner with its model and its KV cache.
        max_rows: largest row count that speculation could ask for.

    Returns:
        Seconds by rows, the fastest of all rounds: what disturbs a measurement only makes it slower.
    """
    max_rows = min(max_rows, runner.max_num_tokens)
    sizes = [rows for rows in (*range(1, EVERY_SIZE_TO + 1), *LARGER_SIZES) if rows <= max_rows]
    # Powers of two first, so that they are there when time runs out within the first round.
    sizes.sort(key=lambda rows: rows & (rows - 1) != 0)
    profile: dict[int, float] = {}
    _dummy_step(runner, sizes[0])  # first touches are slow
    ends = time.perf_counter() + TIME_LIMIT_SECONDS
    for _ in range(MAX_ROUNDS):
        for rows in sizes:
            if profile and _first_rank_says(time.perf_counter() > ends):
                return profile
            started = time.perf_counter()
            _dummy_step(runner, rows)
            seconds = time.perf_counter() - started
            profile[rows] = min(seconds, profile.get(rows, seconds))
    return profile


def _first_rank_says(answer: bool) -> bool:
    """A rank that stops alone would leave the others waiting in the next step."""
    tp_group = get_tp_group()
    return answer if tp_group.world_size == 1 else bool(tp_group.broadcast_object(answer))


@torch.inference_mode()
def _dummy_step(runner: Any, rows: int) -> None:
    hidden_states, _ = runner._dummy_run(rows, cudagraph_runtime_mode=CUDAGraphMode.NONE, skip_eplb=True)
    runner.model.compute_logits(hidden_states[:rows])
