"""A reinforcement-learning rollout batch: groups of sampled responses with a long tail, timed to the last one.

Stock's responses end where the model ends them. A sampled response of another engine is another draw and would have
another length, and the lengths decide how long the tail is; so in each round the other engines' responses get the
lengths that stock's had, and the wall times of equally long rollouts are compared. ``--natural-end`` lets every engine
end its own responses. TLT with and without drafts owe each other the same tokens, which is checked.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from benchmarks.engines import FIXED_STRATEGIES, EngineSettings, emits_wrong_text
from benchmarks.jobs import Job, JobRequest, JobResult
from benchmarks.machine import machine_info, new_result
from benchmarks.measure import Comparison, print_rows, run_interleaved
from benchmarks.near_ties import LARGEST_GAP, gap_where_they_part
from benchmarks.options import add_common_options, chosen_engines, exported_drafter, model_name
from benchmarks.prompts import ROLLOUT_TASKS, make_prompts, make_warmup_prompts
from benchmarks.result import Row, quantile

ENGINES = ("stock", "stock-ngram", "stock-suffix", "tlt-off", "tlt-ngram")
LEARNED_ENGINES = (
    "stock-eagle3-2",
    "stock-eagle3-3",
    "stock-eagle3-table",
    *(f"tlt-only-{name}" for name in FIXED_STRATEGIES),
    "tlt-learned",
)
QUICK_ENGINES = ("stock", "stock-suffix", "tlt-off", "tlt-ngram")


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_rollout", description=__doc__)
    add_common_options(parser, ENGINES, QUICK_ENGINES, LEARNED_ENGINES)
    parser.add_argument("--num-prompts", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=4, help="responses of each prompt")
    parser.add_argument("--max-tokens", type=int, default=1536)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--top-k", type=int, default=0, help="0 keeps all tokens")
    parser.add_argument("--concurrency", type=int, help="requests live at a time; all of them by default")
    parser.add_argument("--min-p", type=float, default=0.0, help="stock speculating engines refuse it and sit out")
    parser.add_argument("--natural-end", action="store_true", help="every engine's responses end on their own")
    parser.add_argument("--seed", type=int, default=0, help="the first request's; the others, and rounds, count up")
    arguments = parser.parse_args()
    arguments.engines = chosen_engines(arguments)
    if arguments.temperature > 0:  # what stock's drafters gain above it is the speed of wrong text
        arguments.engines = [name for name in arguments.engines if not name.startswith("stock-eagle3")]
    if arguments.quick:
        arguments.num_prompts, arguments.group_size = 2, 2
        arguments.max_tokens, arguments.repetitions = 48, 1
    if arguments.min_p > 0:
        arguments.engines = [engine for engine in arguments.engines if not engine.startswith("stock-")]
    return arguments


def make_job(
    arguments: argparse.Namespace,
    engine: str,
    prompts: list[list[int]],
    warmup: list[list[int]],
    repetition: int = 0,
    lengths: Mapping[str, int] | None = None,
) -> Job:
    """Returns an engine's job in a round; with ``lengths`` each response has exactly the given number of tokens.

    Stock engines sample from one generator seeded for the whole engine: a generator for each request makes stock's
    steps longer on CPU, and a baseline must not be made slow.
    """
    sampling: dict[str, Any] = {
        "temperature": arguments.temperature,
        "top_p": arguments.top_p,
        "top_k": arguments.top_k,
        "min_p": arguments.min_p,
    }
    seeded = engine.startswith("tlt-")
    first_seed = arguments.seed + repetition * len(prompts) * arguments.group_size
    requests = []
    for index, prompt in enumerate(prompt for prompt in prompts for _ in range(arguments.group_size)):
        request_id = f"p{index // arguments.group_size}-r{index % arguments.group_size}"
        requests.append(
            JobRequest(
                request_id=request_id,
                prompt_token_ids=prompt,
                max_tokens=arguments.max_tokens if lengths is None else lengths[request_id],
                ignore_eos=lengths is not None,
                seed=first_seed + index if seeded else None,
                **sampling,
            )
        )
    warmup_requests = [
        JobRequest(request_id=f"w{index}", prompt_token_ids=prompt, max_tokens=16, **sampling)
        for index, prompt in enumerate(warmup)
    ]
    return Job(
        engine=engine,
        settings=vars(
            EngineSettings(
                model=arguments.model,
                max_num_seqs=len(requests),
                seed=first_seed,
                drafter=arguments.drafter,
                exported_drafter=arguments.exported_drafter,
            )
        ),
        requests=requests,
        concurrency=arguments.concurrency or len(requests),
        warmup=warmup_requests,
    )


def gaps_of_differing(comparison: Comparison, engine: str, requests: list[list[JobRequest]], model: str) -> list[float]:
    """Returns, for each response that differs with and without drafts, the gap of the scores where they part.

    Args:
        comparison: Holds the runs of the engine and of ``tlt-off``.
        engine: One that drafts.
        requests: Each round's requests.
        model: Directory of the target.
    """
    gaps = []
    pairs = zip(requests, comparison.results[engine], comparison.results["tlt-off"], strict=True)
    for round_requests, with_drafts, without in pairs:
        for request in round_requests:
            mine, theirs = with_drafts.token_ids[request.request_id], without.token_ids[request.request_id]
            if mine != theirs:
                gaps.append(gap_where_they_part(model, request, mine, theirs))
    return gaps


def rollout_rows(comparison: Comparison, temperature: float, on_cpu: bool, gaps: dict[str, list[float]]) -> list[Row]:
    """Makes the rows of all engines, with equality checked where it is owed; ties of float32 may fall either way.

    Args:
        comparison: All runs.
        temperature: They were sampled at.
        on_cpu: Whether stock's speculating engines are wrong there.
        gaps: For each engine of ours that drafts, where its responses part from those of ``tlt-off``.
    """
    rows: list[Row] = []
    results = comparison.results
    for engine in results:
        equal: bool | None = None
        if engine != "stock" and temperature == 0:
            equal = comparison.outputs_equal(engine, "stock")
        elif engine in gaps:
            equal = all(gap < LARGEST_GAP for gap in gaps[engine])
        elif emits_wrong_text(engine, temperature, on_cpu):
            equal = False
        rows += comparison.speed_rows(engine, equal)
        rows += comparison.live_batch_rows(engine)
        rows.append(comparison.row(engine, "tokens", "tokens", lambda result: result.num_tokens))
    for engine, engine_gaps in gaps.items():
        rows.append(
            comparison.row(
                engine,
                "wall_s",
                "s",
                lambda result: result.wall_s,
                case="same tokens",
                baseline="tlt-off",
                outputs_equal=all(gap < LARGEST_GAP for gap in engine_gaps),
            )
        )
    return rows


def length_quantiles(comparison: Comparison) -> dict[str, float]:
    """Returns quantiles of the baseline's response lengths over all rounds, in tokens."""
    lengths = [
        len(token_ids) for result in comparison.results[comparison.baseline] for token_ids in result.token_ids.values()
    ]
    return {f"p{round(100 * share)}": quantile(lengths, share) for share in (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)}


def main() -> None:
    """Runs the benchmark, prints its rows and, unless ``--quick``, writes its file."""
    arguments = parse_arguments()
    on_cpu = machine_info()["gpu"] is None
    prompts = make_prompts(arguments.model, ROLLOUT_TASKS, arguments.num_prompts)
    warmup = make_warmup_prompts(arguments.model, 4)
    settings = {
        "model": model_name(arguments.model),
        "dtype": "float32",
        "temperature": arguments.temperature,
        "top_p": arguments.top_p,
        "top_k": arguments.top_k,
        "min_p": arguments.min_p,
        "tasks": list(ROLLOUT_TASKS),
        "num_prompts": arguments.num_prompts,
        "group_size": arguments.group_size,
        "max_tokens": arguments.max_tokens,
        "concurrency": arguments.concurrency,
        "seed": arguments.seed,
        "repetitions": arguments.repetitions,
        "lengths": "each engine's own" if arguments.natural_end else "stock's of the same round, natural ends",
        "request_seeds": "tlt engines only; stock engines draw from one generator, which is faster on CPU",
    }
    name = "rollout" if arguments.drafter is None else "rollout_learned"
    result = new_result(name, "benchmarks.bench_rollout", settings)

    tlt_requests: list[list[JobRequest]] = []

    def job_of_round(engine: str, repetition: int, this_round: Mapping[str, JobResult]) -> Job:
        lengths = None
        if "stock" in this_round and not arguments.natural_end:
            lengths = {request_id: len(ids) for request_id, ids in this_round["stock"].token_ids.items()}
        job = make_job(arguments, engine, prompts, warmup, repetition, lengths)
        if engine == "tlt-off":
            tlt_requests.append(job.requests)
        return job

    with exported_drafter(arguments.drafter) as arguments.exported_drafter:
        runs = run_interleaved(arguments.engines, arguments.repetitions, job_of_round, "rollout")
    comparison = Comparison("rollout", runs, baseline="stock")
    wrong = [name for name in arguments.engines if emits_wrong_text(name, arguments.temperature, on_cpu)]
    result.settings["notes"] = [f"{name}: outputs wrong above temperature 0" for name in wrong]
    result.settings["response_length"] = length_quantiles(comparison)
    gaps: dict[str, list[float]] = {}
    if "tlt-off" in arguments.engines:
        drafting = [name for name in arguments.engines if name.startswith("tlt-") and name != "tlt-off"]
        gaps = {name: gaps_of_differing(comparison, name, tlt_requests, arguments.model) for name in drafting}
        result.settings["score_gaps_of_responses_parted_by_drafts"] = gaps
    result.rows = rollout_rows(comparison, arguments.temperature, on_cpu, gaps)
    result.series = [series for engine in arguments.engines for series in comparison.curves(engine)]
    print_rows(result.rows)
    for note in result.settings["notes"]:
        print(f"note: {note}")
    print(f"score gaps of responses parted by drafts: {gaps}")
    print(f"response length of stock, tokens: {result.settings['response_length']}")
    if not arguments.quick:
        print(f"written: {result.write(arguments.output).name}")


if __name__ == "__main__":
    main()
