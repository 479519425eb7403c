"""One engine served a stream of requests, in a process of its own; what each request's drafts were worth.

Reads a job as JSON from stdin and writes what happened to the file that is named in it.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

STATUS_EVERY_S = 10.0


@dataclass(frozen=True, kw_only=True)
class StreamJob:
    """A stream of bursts and the engine that serves it."""

    model: str
    speculative_config: dict[str, Any]
    output: str
    tasks: str
    seed: int
    first_burst: int = 0
    num_bursts: int | None = None
    """None for as many as come within ``seconds``."""
    seconds: float = float("inf")
    burst_size: int = 4
    mean_gap_s: float = 0.0
    """Mean of the exponential time between two bursts; 0 sends each when the one before is done."""
    max_tokens: int = 256
    new_target: str | None = None
    new_target_at: float = 0.0
    """When the target's weights are replaced by these: seconds into the stream, or bursts if there are no gaps."""
    load_after: str | None = None
    """A drafter that is loaded when the target is replaced."""


@dataclass
class Request:
    """What became of a request."""

    burst: int
    temperature: float
    arrived_s: float
    finished_s: float = 0.0
    num_tokens: int = 0
    num_steps: int = 0


def run(job: StreamJob) -> dict[str, Any]:
    """Serves the stream and returns its requests and the engine's status over time."""
    from transformers import AutoTokenizer
    from vllm import LLM, SamplingParams

    from tlt_engine.server.recording import read_prompts

    llm = LLM(
        job.model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=4 * job.burst_size,
        enable_prefix_caching=False,
        speculative_config=job.speculative_config,
    )
    engine = llm.llm_engine
    arrivals = arrival_times(job)
    num_prompts = (job.first_burst + len(arrivals)) * job.burst_size
    prompts = read_prompts(
        f"reasoning-gym:{job.tasks}", AutoTokenizer.from_pretrained(job.model), num_prompts, job.seed
    )
    requests: dict[str, Request] = {}
    states: list[dict[str, Any]] = []
    start = time.perf_counter()
    next_status, next_burst, is_replaced = 0.0, 0, job.new_target is None
    while True:
        now = time.perf_counter() - start
        if now >= next_status:
            states.append({"s": now, "burst": next_burst, **llm.collective_rpc("tlt_status")[0]})
            next_status = now + STATUS_EVERY_S
        is_quiet = not engine.has_unfinished_requests()
        if not is_replaced and is_quiet and (now if job.mean_gap_s else next_burst) >= job.new_target_at:
            llm.collective_rpc("reload_weights", kwargs={"weights_path": job.new_target})
            if job.load_after is not None:
                llm.collective_rpc("tlt_publish", args=(job.load_after,))
            is_replaced = True
        may_send = is_quiet if not job.mean_gap_s else next_burst < len(arrivals) and now >= arrivals[next_burst]
        if may_send and next_burst < len(arrivals) and now < job.seconds:
            for place in range(job.burst_size):
                number = (job.first_burst + next_burst) * job.burst_size + place
                params = SamplingParams(
                    temperature=float(number % 2), max_tokens=job.max_tokens, seed=number, detokenize=False
                )
                engine.add_request(str(number), {"prompt_token_ids": prompts[number]}, params)
                requests[str(number)] = Request(next_burst, float(number % 2), now)
            next_burst += 1
        elif is_quiet:
            if next_burst >= len(arrivals) or now >= job.seconds:
                break
            time.sleep(0.01)
        for output in engine.step() if engine.has_unfinished_requests() else ():
            request = requests[output.request_id.partition("-")[0]]
            request.num_steps += 1
            request.num_tokens = len(output.outputs[0].token_ids)
            if output.finished:
                request.finished_s = time.perf_counter() - start
    states.append({"s": time.perf_counter() - start, "burst": next_burst, **llm.collective_rpc("tlt_status")[0]})
    engine.engine_core.shutdown()
    return {"requests": [asdict(request) for request in requests.values()], "states": states}


def arrival_times(job: StreamJob) -> list[float]:
    """Returns when bursts arrive, the same for equal jobs."""
    if not job.mean_gap_s:
        return [0.0] * (job.num_bursts or 0)
    rng = random.Random(job.seed)  # noqa: S311 - not for secrets
    times: list[float] = []
    now = 0.0
    while now < job.seconds and (job.num_bursts is None or len(times) < job.num_bursts):
        times.append(now)
        now += rng.expovariate(1.0 / job.mean_gap_s)
    return times


if __name__ == "__main__":
    job = StreamJob(**json.loads(sys.stdin.read()))
    Path(job.output).write_text(json.dumps(run(job)))
