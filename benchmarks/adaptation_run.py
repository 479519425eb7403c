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

MOST_BURSTS = 400
TAIL_REQUESTS = 4


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
    burst_size: int = 12
    mean_gap_s: float = 0.0
    """Mean of the exponential time from the end of a burst to the next; 0 leaves no gaps."""
    max_tokens: int = 256
    new_target: str | None = None
    new_target_at: int = 0
    """Bursts of this job after which the target's weights are replaced by these."""


@dataclass
class Request:
    """What became of a request."""

    burst: int
    temperature: float
    arrived_s: float
    finished_s: float = 0.0
    num_tokens: int = 0
    tail_tokens: int = 0
    """Tokens emitted in decode steps with few requests; the tail is where drafts are made."""
    tail_steps: int = 0


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
        max_num_seqs=job.burst_size,
        enable_prefix_caching=False,
        speculative_config=job.speculative_config,
    )
    engine = llm.llm_engine
    tokenizer = AutoTokenizer.from_pretrained(job.model)
    most = MOST_BURSTS if job.num_bursts is None else job.num_bursts
    num_prompts = (job.first_burst + most) * job.burst_size
    prompts = read_prompts(f"reasoning-gym:{job.tasks}", tokenizer, num_prompts, job.seed)
    rng = random.Random(job.seed)  # noqa: S311 - not for secrets
    requests: dict[str, Request] = {}
    states: list[dict[str, Any]] = []
    start = time.perf_counter()
    next_status, next_burst, next_arrival = 0.0, 0, 0.0
    while True:
        now = time.perf_counter() - start
        if now >= next_status:
            states.append({"s": now, "burst": next_burst, **llm.collective_rpc("tlt_status")[0]})
            next_status = now + STATUS_EVERY_S
        if engine.has_unfinished_requests():
            num_live = engine.get_num_unfinished_requests()
            for output in engine.step():
                request = requests[output.request_id.partition("-")[0]]
                before, request.num_tokens = request.num_tokens, len(output.outputs[0].token_ids)
                if before and num_live <= TAIL_REQUESTS:
                    request.tail_tokens += request.num_tokens - before
                    request.tail_steps += 1
                if output.finished:
                    request.finished_s = time.perf_counter() - start
                    next_arrival = request.finished_s + (rng.expovariate(1 / job.mean_gap_s) if job.mean_gap_s else 0)
            continue
        if next_burst >= most or now >= job.seconds:
            break
        if now < next_arrival:
            time.sleep(0.01)
            continue
        if job.new_target is not None and next_burst == job.new_target_at:
            llm.collective_rpc("reload_weights", kwargs={"weights_path": job.new_target})
            now = time.perf_counter() - start
        for place in range(job.burst_size):
            number = (job.first_burst + next_burst) * job.burst_size + place
            temperature = float(number // len(job.tasks.split("+")) % 2)
            params = SamplingParams(temperature=temperature, max_tokens=job.max_tokens, seed=number, detokenize=False)
            engine.add_request(str(number), {"prompt_token_ids": prompts[number]}, params)
            requests[str(number)] = Request(next_burst, temperature, now)
        next_burst += 1
    states.append({"s": time.perf_counter() - start, "burst": next_burst, **llm.collective_rpc("tlt_status")[0]})
    engine.engine_core.shutdown()
    return {"requests": [asdict(request) for request in requests.values()], "states": states}


if __name__ == "__main__":
    job = StreamJob(**json.loads(sys.stdin.read()))
    Path(job.output).write_text(json.dumps(run(job)))
