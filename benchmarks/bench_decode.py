"""Greedy decoding at fixed batch sizes: what a step costs, what speculation gains, and whether the tokens are stock's.

Every engine and every batch size gets a fresh process: a cache of past responses must not have seen these prompts.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from benchmarks.engines import EngineSettings
from benchmarks.jobs import Job, JobRequest
from benchmarks.machine import new_result
from benchmarks.measure import Comparison, print_rows, run_interleaved
from benchmarks.options import add_common_options, chosen_engines, exported_drafter, model_name
from benchmarks.prompts import MATH_TASKS, make_prompts, make_warmup_prompts
from benchmarks.result import Row, quantile

ENGINES = ("stock", "stock-ngram", "stock-suffix", "tlt-off", "tlt-ngram")
QUICK_ENGINES = ("stock", "tlt-ngram")
LARGE_BATCH = 32
LARGE_BATCH_ENGINES = ("stock", "tlt-off")
"""At this size only the price of being there at all is asked for."""


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_decode", description=__doc__)
    add_common_options(parser, ENGINES, QUICK_ENGINES)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 2, 4, 8, LARGE_BATCH])
    parser.add_argument("--num-prompts", type=int, default=8, help="at least; a larger batch size raises it")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--no-oracle", action="store_true", help="leave out the oracle drafter")
    arguments = parser.parse_args()
    arguments.engines = chosen_engines(arguments)
    if arguments.quick:
        arguments.batch_sizes, arguments.num_prompts = [1], 2
        arguments.max_tokens, arguments.repetitions = 48, 1
    return arguments


def make_jobs(arguments: argparse.Namespace, batch: int) -> dict[str, Job]:
    """Returns the job of each engine at one batch size; they differ in the engine's name only."""
    prompts = make_prompts(arguments.model, MATH_TASKS, max(arguments.num_prompts, batch))
    requests = [
        JobRequest(request_id=f"p{index}", prompt_token_ids=prompt, max_tokens=arguments.max_tokens)
        for index, prompt in enumerate(prompts)
    ]
    warmup = [
        JobRequest(request_id=f"w{index}", prompt_token_ids=prompt, max_tokens=16)
        for index, prompt in enumerate(make_warmup_prompts(arguments.model, min(batch, 4)))
    ]
    settings = vars(
        EngineSettings(model=arguments.model, drafter=arguments.drafter, exported_drafter=arguments.exported_drafter)
    )
    names = (*arguments.engines, "stock", "tlt-oracle")
    return {
        name: Job(engine=name, settings=settings, requests=requests, concurrency=batch, warmup=warmup) for name in names
    }


def measure_batch(arguments: argparse.Namespace, batch: int) -> Comparison:
    """Measures all engines at one batch size."""
    engines = arguments.engines
    if batch >= LARGE_BATCH:
        engines = [engine for engine in engines if engine in LARGE_BATCH_ENGINES]
    jobs = make_jobs(arguments, batch)
    results = run_interleaved(engines, arguments.repetitions, lambda name, *_: jobs[name], f"batch={batch}")
    return Comparison(f"batch={batch}", results, baseline="stock")


def batch_rows(comparison: Comparison) -> list[Row]:
    """Makes the rows of one batch size; greedy tokens owe equality with stock's, whatever drafts."""
    rows = []
    for engine in comparison.results:
        equal = None if engine == "stock" else comparison.outputs_equal(engine, "stock")
        rows += comparison.speed_rows(engine, equal)
        rows += comparison.own_share_rows(engine)
    return rows


def oracle_rows(arguments: argparse.Namespace, answers: dict[str, list[int]]) -> list[Row]:
    """Measures what right drafts gain and what verifying 8 rows costs: 7 draft tokens, all right, batch 1."""
    jobs = make_jobs(arguments, batch=1)
    told = [replace(request, answer_token_ids=answers[request.request_id]) for request in jobs["stock"].requests]
    jobs["tlt-oracle"] = replace(jobs["tlt-oracle"], requests=told)
    results = run_interleaved(["stock", "tlt-oracle"], arguments.repetitions, lambda name, *_: jobs[name], "oracle")
    comparison = Comparison("oracle", results, baseline="stock")
    rows = comparison.speed_rows("tlt-oracle", comparison.outputs_equal("tlt-oracle", "stock"))
    # No ratio above 1 can come of this one: a step of 8 rows against a step of one row.
    rows.append(
        comparison.row(
            "tlt-oracle",
            "step_ms",
            "ms",
            lambda result: quantile(result.decode_step_ms() or [0.0], 0.5),
            case="verify 8 rows",
            baseline="stock",
        )
    )
    return rows


def main() -> None:
    """Runs the benchmark, prints its rows and, unless ``--quick``, writes its file."""
    arguments = parse_arguments()
    settings = {
        "model": model_name(arguments.model),
        "dtype": "float32",
        "temperature": 0.0,
        "tasks": list(MATH_TASKS),
        "max_tokens": arguments.max_tokens,
        "num_prompts": {str(batch): max(arguments.num_prompts, batch) for batch in arguments.batch_sizes},
        "repetitions": arguments.repetitions,
    }
    name = "decode" if arguments.drafter is None else "decode_learned"
    result = new_result(name, "benchmarks.bench_decode", settings)
    answers: dict[str, list[int]] | None = None
    with exported_drafter(arguments.drafter) as arguments.exported_drafter:
        for batch in arguments.batch_sizes:
            comparison = measure_batch(arguments, batch)
            if batch == 1:
                answers = comparison.results["stock"][0].token_ids
            result.rows += batch_rows(comparison)
        if answers is not None and not arguments.no_oracle:
            result.rows += oracle_rows(arguments, answers)
    print_rows(result.rows)
    if not arguments.quick:
        print(f"written: {result.write(arguments.output).name}")


if __name__ == "__main__":
    main()
