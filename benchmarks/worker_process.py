"""Runs ONE engine over one job: JSON on stdin, JSON on the last line of stdout, progress on stderr.

A fresh process for each measurement keeps caches, allocator state and compiled code of one run out of the next.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from typing import Any

from tqdm import tqdm

from benchmarks import oracle_answers
from benchmarks.engines import TLT_ENGINES_NEEDING_ANSWERS, EngineSettings, speculative_config
from benchmarks.jobs import Job, JobRequest, JobResult, Step


def _start_engine(job: Job) -> Any:
    """Builds the engine and tells an oracle its answers."""
    from vllm import LLM  # here, because vLLM reads its environment when it is imported

    settings = EngineSettings(**job.settings)
    arguments = settings.to_vllm()
    config = speculative_config(job.engine, settings)
    if config is not None:
        arguments["speculative_config"] = config
    if job.engine in TLT_ENGINES_NEEDING_ANSWERS:
        for request in job.requests:
            if request.answer_token_ids is None:
                raise ValueError(f"{job.engine}: request {request.request_id!r} carries no answer_token_ids")
            oracle_answers.remember(request.prompt_token_ids, request.answer_token_ids)
    return LLM(**arguments)


def _add(engine: Any, request: JobRequest) -> str:
    """Gives a request to the engine and returns the id that its outputs carry."""
    from vllm import SamplingParams

    params = SamplingParams(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        seed=request.seed,
        ignore_eos=request.ignore_eos,
        max_tokens=request.max_tokens,
        detokenize=False,
    )
    engine.add_request(request.request_id, {"prompt_token_ids": request.prompt_token_ids}, params)
    return request.request_id


def _run(engine: Any, requests: list[JobRequest], concurrency: int, show: str | None) -> tuple[dict, list[Step], float]:
    """Steps the engine until all requests are done; returns responses, steps and wall seconds."""
    waiting = list(reversed(requests))
    token_ids: dict[str, list[int]] = {request.request_id: [] for request in requests}
    live: set[str] = set()
    steps: list[Step] = []
    progress = tqdm(total=len(requests), desc=show, unit="resp", disable=show is None, file=sys.stderr, mininterval=1)
    start = time.perf_counter()
    while waiting or live:
        num_new = 0
        while waiting and len(live) < concurrency:
            live.add(_add(engine, waiting.pop()))
            num_new += 1
        num_live = len(live)
        began = time.perf_counter()
        outputs = engine.step()
        end = time.perf_counter()
        num_tokens = 0
        for output in outputs:
            response = list(output.outputs[0].token_ids)  # cumulative
            num_tokens += len(response) - len(token_ids[output.request_id])
            token_ids[output.request_id] = response
            if output.finished:
                live.remove(output.request_id)
                progress.update()
        is_decode = num_new == 0 and len(outputs) == num_live
        steps.append(
            Step(
                end_s=round(end - start, 5),
                duration_s=round(end - began, 6),
                num_live=num_live,
                num_tokens=num_tokens,
                is_decode=is_decode,
            )
        )
        progress.set_postfix_str(f"live {len(live)}, {sum(map(len, token_ids.values()))} tokens", refresh=False)
    wall_s = time.perf_counter() - start
    progress.close()
    return token_ids, steps, wall_s


def _counters(llm: Any) -> dict[str, int]:
    """Returns the engine's integer counters by name, summed over label sets."""
    totals: dict[str, int] = {}
    for metric in llm.get_metrics():
        if hasattr(metric, "value"):  # counters and gauges; vectors and histograms have no single value
            totals[metric.name] = totals.get(metric.name, 0) + int(metric.value)
    return totals


def _own_seconds(llm: Any, job: Job) -> dict[str, float]:
    """Returns the seconds that TLT has spent drafting and tapping features; nothing for stock's engines."""
    if not job.engine.startswith("tlt"):
        return {}
    status = llm.collective_rpc("tlt_status")[0]
    return {name: status[f"{name}_seconds"] for name in ("draft", "tap")}


def run_job(job: Job, show: str | None = None) -> JobResult:
    """Starts the job's engine in this process, warms it up, and measures it.

    Args:
        job: What to run.
        show: Text in front of the progress bar; None draws none.

    Returns:
        The measurement; counters of the warm-up are not in it.
    """
    began = time.perf_counter()
    llm = _start_engine(job)
    startup_s = time.perf_counter() - began
    if job.warmup:
        _run(llm.llm_engine, job.warmup, len(job.warmup), None)
    before, own_before = _counters(llm), _own_seconds(llm, job)
    token_ids, steps, wall_s = _run(llm.llm_engine, job.requests, job.concurrency, show)
    after, own_after = _counters(llm), _own_seconds(llm, job)
    drafts, accepted = (
        after.get(name, 0) - before.get(name, 0)
        for name in ("vllm:spec_decode_num_drafts", "vllm:spec_decode_num_accepted_tokens")
    )
    return JobResult(
        engine=job.engine,
        wall_s=wall_s,
        token_ids=token_ids,
        steps=steps,
        num_drafts=drafts,
        num_accepted_tokens=accepted,
        startup_s=startup_s,
        own_shares={name: (seconds - own_before[name]) / wall_s for name, seconds in own_after.items()},
    )


def main() -> None:
    """Reads a job, writes its result."""
    data = json.load(sys.stdin)
    result_fd = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not end up between the result and its reader
    result = run_job(Job.from_json(data["job"]), show=data["show"])
    with os.fdopen(result_fd, "w") as out:
        json.dump(asdict(result), out)
    # vLLM's and torch's exit handlers cost a second and have nothing left to save.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
