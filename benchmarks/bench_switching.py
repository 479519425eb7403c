"""Ten minutes of load that swings around where drafting stops paying: no step stalls, nothing grows.

Requests come in waves, so that the engine turns drafting off and on again in both directions all the time.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil

from benchmarks.bench_acceptance import TASKS
from benchmarks.engines import ENGINE_ENVIRONMENT
from benchmarks.machine import new_result
from benchmarks.measure import print_rows
from benchmarks.options import DEFAULT_MODEL, model_name
from benchmarks.result import Series, quantile, summarise, thin_out

MOST_LIVE, WAVE_S = 16, 20.0
"""Requests at the top of a wave, and its length; at the bottom there is one."""

SETTLED_AFTER = 0.25
"""Share of the run after which buffers are full and memory is compared."""

STALL = 1.5
"""Multiple of the median of its kind beyond which a decode step counts as stalled."""


class Load:
    """Keeps as many requests live as the wave asks for."""

    def __init__(self, model: str, drafter: str) -> None:
        from transformers import AutoTokenizer
        from vllm import LLM

        from tlt_engine.server.recording import read_prompts

        self.llm = LLM(
            model,
            dtype="float32",
            enforce_eager=True,
            max_model_len=1024,
            max_num_seqs=MOST_LIVE,
            speculative_config={
                "method": "tlt",
                "drafter": drafter,
                "train": {"enabled": False},
                "prompt_lookup": {"max_cached_bytes": 16 << 20, "max_cached_responses": 200},
            },
        )
        self.engine = self.llm.llm_engine
        self.prompts = read_prompts(f"reasoning-gym:{TASKS}", AutoTokenizer.from_pretrained(model), 2000, 5)
        self.free_blocks_at_start = self.free_blocks()
        self.num_requests = 0

    def free_blocks(self) -> int:
        """Returns free KV blocks, those of cached prefixes included."""
        free: int = self.engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return free

    def add(self) -> None:
        """Adds a request."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=96, detokenize=False)
        prompt = self.prompts[self.num_requests % len(self.prompts)]
        self.engine.add_request(str(self.num_requests), {"prompt_token_ids": prompt}, params)
        self.num_requests += 1

    def strategy(self) -> str:
        """Returns the strategy that the step under way was chosen."""
        adaptive = self.engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner.drafter.adaptive
        return adaptive.strategy_under_way.name

    def run(self, seconds: float) -> dict[str, Any]:
        """Steps for so long, then until all requests are done."""
        process = psutil.Process()
        start = time.perf_counter()
        steps: list[tuple[float, int, str, float]] = []
        memory: list[tuple[float, float]] = []
        live = 0
        while (now := time.perf_counter() - start) < seconds or live:
            phase = now % WAVE_S / WAVE_S
            wanted = 1 + round((MOST_LIVE - 1) * (1 - abs(2 * phase - 1)))
            is_decode = True
            if now < seconds and live < wanted:
                self.add()
                live, is_decode = live + 1, False
            strategy, num_live = self.strategy(), live
            began = time.perf_counter()
            live -= sum(output.finished for output in self.engine.step())
            if is_decode and live == num_live:
                steps.append((now, num_live, strategy, time.perf_counter() - began))
            if len(steps) % 100 == 0:
                memory.append((now, process.memory_info().rss / 2**20))
        return {"steps": steps, "memory": memory}


def main() -> None:
    """Runs the load, prints its rows and, unless ``--quick``, writes its file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_switching", description=__doc__)
    parser.add_argument("drafter", type=Path, help="directory of a trained drafter")
    parser.add_argument("--model", default=str(DEFAULT_MODEL))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    os.environ.update(ENGINE_ENVIRONMENT)
    minutes = 1.0 if arguments.quick else arguments.minutes
    result = new_result(
        "switching", "benchmarks.bench_switching", {"model": model_name(arguments.model), "minutes": minutes}
    )
    load = Load(str(Path(arguments.model).resolve()), str(arguments.drafter.resolve()))
    seen = load.run(60.0 * minutes)
    kinds: dict[tuple[int, str], list[float]] = defaultdict(list)
    for when, num_live, strategy, seconds in seen["steps"]:
        if when >= SETTLED_AFTER * 60.0 * minutes:
            kinds[num_live, strategy].append(seconds)
    ratios = [one / quantile(times, 0.5) for times in kinds.values() if len(times) >= 20 for one in times]
    settled = [megabytes for when, megabytes in seen["memory"] if when >= SETTLED_AFTER * 60.0 * minutes]
    quarter = max(1, len(settled) // 4)
    adaptive = load.llm.collective_rpc("tlt_status")[0]["adaptive"]
    for metric, value, unit in (
        ("decode steps", len(seen["steps"]), ""),
        ("requests", load.num_requests, ""),
        ("switches", adaptive["switches"], ""),
        ("steps beyond 1.5x the median of their batch size and strategy", sum(one > STALL for one in ratios), ""),
        ("step over the median of its kind, 99th of 100", quantile(ratios, 0.99), "ratio"),
        ("longest step over the median of its kind", max(ratios), "ratio"),
        ("memory at the end over memory when settled", max(settled[-quarter:]) / max(settled[:quarter]), "ratio"),
        ("KV blocks not given back", load.free_blocks_at_start - load.free_blocks(), ""),
    ):
        result.rows.append(
            summarise([value], name="tlt-learned", case="waves", metric=metric, unit=unit, better="lower")
        )
    result.settings["steps_by_strategy"] = adaptive["steps"]
    result.series = [
        Series(name="live", x="s", y="requests", points=thin_out([(when, live) for when, live, _, _ in seen["steps"]])),
        Series(name="memory", x="s", y="MiB", points=thin_out(seen["memory"])),
    ]
    print_rows(result.rows)
    if not arguments.quick:
        print(f"written: {result.write().name}")
    load.engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
