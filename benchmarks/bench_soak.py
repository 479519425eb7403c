"""Half an hour of mixed load with the trainer at work: memory stays flat, nothing stalls, probes stay equal to stock's.

Load comes and goes; requests are aborted at random; the trainer is put to sleep, woken, switched, told that the target
changed, and given other weights.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.bench_acceptance import TASKS
from benchmarks.engines import ENGINE_ENVIRONMENT, child_environment
from benchmarks.machine import new_result
from benchmarks.measure import print_rows
from benchmarks.options import DEFAULT_MODEL, model_name
from benchmarks.result import Series, summarise, thin_out

SEED = 31
MAX_SEQS = 8
NUM_PROBES = 6
PROBE_TOKENS = 64
PROBE_EVERY_S = 60.0
MEMORY_EVERY_S = 5.0
SETTLED_AFTER = 0.25
"""Share of the run after which buffers are full and memory is compared."""

SPECULATIVE_CONFIG = {
    "method": "tlt",
    "prompt_lookup": {"max_cached_bytes": 16 << 20, "max_cached_responses": 200},
    "train": {"max_running": 4, "buffer_bytes": 64 << 20},
}


class Engine:
    """One engine, stepped by hand."""

    def __init__(self, model: str, speculative_config: dict[str, Any] | None) -> None:
        from transformers import AutoTokenizer
        from vllm import LLM

        from tlt_engine.server.recording import read_prompts

        self.llm = LLM(
            model,
            dtype="float32",
            enforce_eager=True,
            max_model_len=1024,
            max_num_seqs=MAX_SEQS,
            speculative_config=speculative_config,
        )
        self.engine = self.llm.llm_engine
        self.prompts = read_prompts(f"reasoning-gym:{TASKS}", AutoTokenizer.from_pretrained(model), 2000, SEED)
        self.longest_step = 0.0

    def add(self, name: str, number: int, temperature: float, max_tokens: int) -> None:
        """Adds a request."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=number, detokenize=False)
        self.engine.add_request(name, {"prompt_token_ids": self.prompts[number % len(self.prompts)]}, params)

    def step(self) -> list[Any]:
        """Steps once and notes the longest step."""
        started = time.perf_counter()
        outputs = self.engine.step()
        self.longest_step = max(self.longest_step, time.perf_counter() - started)
        return list(outputs)

    def probes(self) -> list[list[int]]:
        """Returns greedy answers to the probes, served side by side."""
        for probe in range(NUM_PROBES):
            self.add(f"probe {probe}", 1990 + probe, 0.0, PROBE_TOKENS)
        answers: dict[str, list[int]] = {}
        while len(answers) < NUM_PROBES:
            for output in self.step():
                name = output.request_id.partition("-")[0]
                if output.finished and name.startswith("probe"):
                    answers[name] = list(output.outputs[0].token_ids)
        return [answers[f"probe {probe}"] for probe in range(NUM_PROBES)]


def soak(engine: Engine, seconds: float, expected: list[list[int]]) -> dict[str, Any]:
    """Loads an engine for a while; returns what was seen."""
    rng = random.Random(SEED)  # noqa: S311 - not for secrets
    process = psutil.Process()
    memory: list[tuple[float, float]] = []
    counts = dict.fromkeys(
        ("requests", "aborts", "sleeps", "switches", "target updates", "probes", "unequal probes"), 0
    )
    start = time.perf_counter()
    next_probe, next_memory, rest_until = PROBE_EVERY_S, 0.0, 0.0
    running: list[str] = []
    is_asleep = False
    while (now := time.perf_counter() - start) < seconds:
        if now >= next_memory:
            memory.append((now, process.memory_info().rss / 2**20))
            next_memory = now + MEMORY_EVERY_S
        if now >= next_probe and not running:
            counts["probes"] += NUM_PROBES
            counts["unequal probes"] += sum(map(list.__ne__, engine.probes(), expected))
            next_probe = now + PROBE_EVERY_S
        chance = rng.random()
        if len(running) < MAX_SEQS and now > rest_until and chance < 0.04 + 0.2 * (not running):
            name = f"{counts['requests']}"
            engine.add(name, counts["requests"], rng.choice((0.0, 0.7, 1.0)), rng.choice((8, 64, 200, 400)))
            running.append(name)
            counts["requests"] += 1
        elif running and chance > 0.997:
            engine.engine.abort_request([running.pop(rng.randrange(len(running)))])
            counts["aborts"] += 1
        elif 0.5 < chance < 0.502:
            engine.llm.collective_rpc(
                "wake_up" if is_asleep else "sleep", args=() if is_asleep else (rng.choice((1, 2)),)
            )
            is_asleep = not is_asleep
            counts["sleeps"] += is_asleep
        elif 0.6 < chance < 0.6015:
            engine.llm.collective_rpc("tlt_train", args=(rng.choice(("auto", "on", "off", "auto")),))
            counts["switches"] += 1
        elif 0.7 < chance < 0.7005:
            engine.llm.collective_rpc("tlt_target_updated")
            counts["target updates"] += 1
        elif 0.8 < chance < 0.802:
            rest_until = now + rng.uniform(1, 10)
        if engine.engine.has_unfinished_requests():
            for output in engine.step():
                name = output.request_id.partition("-")[0]
                if output.finished and name in running:
                    running.remove(name)
        else:
            running.clear()
            time.sleep(0.005)
    return {"memory": memory, "counts": counts, "status": engine.llm.collective_rpc("tlt_status")[0]}


def stock_answers(model: str) -> list[list[int]]:
    """Returns stock's answers to the probes, from a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_soak", "--stock-answers", "--model", model],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=child_environment(),
    )
    answers: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def main() -> None:
    """Runs the soak, prints its rows and, unless ``--quick``, writes its file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_soak", description=__doc__)
    parser.add_argument("--model", default=str(DEFAULT_MODEL))
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--stock-answers", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    os.environ.update(ENGINE_ENVIRONMENT)
    model = str(Path(arguments.model).resolve())
    if arguments.stock_answers:
        print(json.dumps(Engine(model, None).probes()))
        return
    minutes = 1.0 if arguments.quick else arguments.minutes
    result = new_result("soak", "benchmarks.bench_soak", {"model": model_name(arguments.model), "minutes": minutes})
    expected = stock_answers(model)
    engine = Engine(model, SPECULATIVE_CONFIG)
    seen = soak(engine, 60.0 * minutes, expected)
    settled = [megabytes for when, megabytes in seen["memory"] if when >= SETTLED_AFTER * 60.0 * minutes]
    quarter = max(1, len(settled) // 4)
    first, last = sorted(settled[:quarter])[quarter // 2], sorted(settled[-quarter:])[quarter // 2]
    training = seen["status"]["training"]
    for metric, value, unit in (
        ("memory at the end over memory when settled", last / first, "ratio"),
        ("longest step", 1e3 * engine.longest_step, "ms"),
        ("failures of drafter and trainer", seen["status"]["drafter_failures"] + training["failures"], ""),
        *((name, count, "") for name, count in seen["counts"].items()),
        ("optimizer steps", training["steps"], ""),
        ("publications", training["publications"]["published"], ""),
    ):
        result.rows.append(summarise([value], name="soak", case="trainer on", metric=metric, unit=unit, better="lower"))
    result.series = [Series(name="memory", x="s", y="MiB", points=thin_out(seen["memory"]))]
    print_rows(result.rows)
    if not arguments.quick:
        print(f"written: {result.write().name}")
    engine.engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
