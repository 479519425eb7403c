"""The main job on one page: a long-tail rollout batch on stock vLLM and on TLT, side by side, with a plot.

It decodes greedily, because then TLT owes exactly stock's tokens; ``bench_rollout`` has the sampled case.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks.engines import EngineSettings
from benchmarks.jobs import Job, JobRequest, JobResult
from benchmarks.measure import run_curves, run_in_fresh_process
from benchmarks.options import DEFAULT_MODEL, model_directory, model_name
from benchmarks.prompts import ROLLOUT_TASKS, make_prompts, make_warmup_prompts
from benchmarks.result import quantile

ENGINES = {"stock": "stock vLLM", "tlt-ngram": "TLT"}
COLORS = {"stock": "#7f7f7f", "tlt-ngram": "#d62728"}


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=__doc__)
    parser.add_argument("--model", type=model_directory, default=str(DEFAULT_MODEL), help="directory of the target")
    parser.add_argument("--num-prompts", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder of demo.png")
    parser.add_argument("--quick", action="store_true", help="a smoke test of under two minutes")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.num_prompts, arguments.max_tokens = 4, 48
    return arguments


def run_engines(arguments: argparse.Namespace) -> dict[str, JobResult]:
    """Runs the same batch on each engine, each in a fresh process, one after the other."""
    prompts = make_prompts(arguments.model, ROLLOUT_TASKS, arguments.num_prompts)
    requests = [
        JobRequest(request_id=f"p{index}", prompt_token_ids=prompt, max_tokens=arguments.max_tokens)
        for index, prompt in enumerate(prompts)
    ]
    warmup = [
        JobRequest(request_id=f"w{index}", prompt_token_ids=prompt, max_tokens=16)
        for index, prompt in enumerate(make_warmup_prompts(arguments.model, 4))
    ]
    results = {}
    for engine, title in ENGINES.items():
        job = Job(
            engine=engine,
            settings=vars(EngineSettings(model=arguments.model)),
            requests=requests,
            concurrency=len(requests),
            warmup=warmup,
        )
        results[engine] = run_in_fresh_process(job, show=f"{title:<10}")
    return results


def num_differing(results: dict[str, JobResult]) -> int:
    """Returns how many responses are not the same tokens on both engines."""
    stock, tlt = results["stock"].token_ids, results["tlt-ngram"].token_ids
    return sum(stock[request_id] != tlt[request_id] for request_id in stock)


def print_comparison(results: dict[str, JobResult], model: str) -> None:
    """Prints both runs side by side."""
    stock, tlt = results["stock"], results["tlt-ngram"]
    lengths = [len(token_ids) for token_ids in stock.token_ids.values()]
    differing = num_differing(results)
    equal = "yes" if differing == 0 else f"NO: {differing} of {len(lengths)} differ"
    quantiles = ", ".join(f"p{round(100 * share)} {quantile(lengths, share):.0f}" for share in (0.1, 0.5, 0.9, 1.0))
    rows = [
        ("wall time, s", stock.wall_s, tlt.wall_s, stock.wall_s / tlt.wall_s),
        ("tokens/s", stock.tokens_per_s, tlt.tokens_per_s, tlt.tokens_per_s / stock.tokens_per_s),
        ("acceptance length", stock.acceptance_length, tlt.acceptance_length, None),
        ("steps", len(stock.steps), len(tlt.steps), len(stock.steps) / len(tlt.steps)),
    ]
    print(f"\n{model}, float32, greedy (temperature 0), {len(lengths)} prompts; response length, tokens: {quantiles}\n")
    print(f"{'':<20}{'stock vLLM':>12}{'TLT':>12}{'':>10}")
    for name, left, right, ratio in rows:
        print(f"{name:<20}{left:>12.2f}{right:>12.2f}{'' if ratio is None else f'{ratio:.2f}x':>10}")
    print(f"{'outputs equal':<20}{'':>12}{equal:>12}")


def plot(results: dict[str, JobResult], path: Path) -> None:
    """Draws running requests and tokens/s over time, both runs."""
    import matplotlib

    matplotlib.use("Agg")  # machines that run this have no display
    from matplotlib import pyplot

    figure, (upper, lower) = pyplot.subplots(2, 1, sharex=True, figsize=(9, 6), layout="constrained")
    for engine, result in results.items():
        live, rate = run_curves(engine, result)
        style = {"color": COLORS[engine], "label": f"{ENGINES[engine]}: {result.wall_s:.1f} s"}
        curve = [(0.0, live.points[0][1]), *live.points, (result.wall_s, 0.0)]
        upper.step(*zip(*curve, strict=True), where="pre", **style)
        lower.step(*zip(*rate.points, strict=True), where="post", **style)
    upper.set_ylabel("running requests")
    lower.set_ylabel("tokens/s")
    lower.set_xlabel("time, s")
    upper.set_title("The same batch, the same tokens" if num_differing(results) == 0 else "The same batch")
    upper.legend()
    for axes in (upper, lower):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> None:
    """Runs the demo; ends with 1 if the outputs differ."""
    arguments = parse_arguments()
    began = time.perf_counter()
    results = run_engines(arguments)
    print_comparison(results, model_name(arguments.model))
    picture = arguments.output / "demo.png"
    plot(results, picture)
    print(f"\nplot: {picture}   ({time.perf_counter() - began:.0f} s in all)")
    sys.exit(1 if num_differing(results) else 0)


if __name__ == "__main__":
    main()
