"""The main job on one page: a long-tail rollout batch on stock vLLM and on TLT, side by side, with a plot.

TLT runs twice: without a drafter's weights, and with a drafter that a short warm-up trains first and that is kept for
the next time. It decodes greedily, because then TLT owes exactly stock's tokens; ``bench_rollout`` has the other case.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.engines import EngineSettings, child_environment
from benchmarks.jobs import Job, JobRequest, JobResult
from benchmarks.measure import run_curves, run_in_fresh_process
from benchmarks.options import DEFAULT_MODEL, model_directory, model_name
from benchmarks.prompts import ROLLOUT_TASKS, make_prompts, make_warmup_prompts
from benchmarks.result import quantile
from tlt_engine.cli.warmup import WORK_FOLDER
from tlt_engine.drafter.checkpoint import FILE_NAME

ENGINES = {"stock": "stock vLLM", "tlt-ngram": "TLT, no weights", "tlt-learned": "TLT, learned drafter"}
COLORS = {"stock": "#7f7f7f", "tlt-ngram": "#1f77b4", "tlt-learned": "#d62728"}

WARMUP_SEED = 7
"""Of the prompts the drafter is trained on: other ones than those of the batch."""


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=__doc__)
    parser.add_argument("--model", type=model_directory, default=str(DEFAULT_MODEL), help="directory of the target")
    parser.add_argument("--num-prompts", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--drafter", type=Path, help="of the last row; trained if it is not there yet")
    parser.add_argument("--warmup-tokens", type=int, default=24_000, help="response tokens it is trained on")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder of demo.png")
    parser.add_argument("--quick", action="store_true", help="a smoke test of under two minutes")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.num_prompts, arguments.max_tokens, arguments.warmup_tokens = 4, 48, 400
    arguments.drafter = arguments.drafter or default_drafter(arguments)
    return arguments


def default_drafter(arguments: argparse.Namespace) -> Path:
    """Returns where the demo's own drafter lies; its size is in the name, so that another one starts afresh."""
    return Path(arguments.model).parent / f"{model_name(arguments.model)}-drafter-{arguments.warmup_tokens}"


def warm_up(arguments: argparse.Namespace) -> None:
    """Trains the drafter with the command a user would type; does nothing if it is there."""
    is_own = arguments.drafter != default_drafter(arguments)
    if (arguments.drafter / FILE_NAME).exists() and (is_own or not (arguments.drafter / WORK_FOLDER).exists()):
        return
    print(f"a first drafter for {model_name(arguments.model)}, kept in {arguments.drafter} for the next time:")
    command = [sys.executable, "-m", "tlt_engine", "warmup", arguments.model, "--dtype", "float32"]
    command += ["--data", "reasoning-gym:" + "+".join(ROLLOUT_TASKS), "--seed", str(WARMUP_SEED)]
    command += ["--tokens", str(arguments.warmup_tokens), "--max-tokens", "192", "--epochs", "3"]
    command += ["--out", str(arguments.drafter)]
    if subprocess.run(command, check=False, env=child_environment()).returncode:  # noqa: S603 - our own command
        sys.exit(
            f"demo: the warm-up failed, see above; name a trained drafter with --drafter, or delete {arguments.drafter}"
        )


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
            settings=vars(EngineSettings(model=arguments.model, drafter=str(arguments.drafter.resolve()))),
            requests=requests,
            concurrency=len(requests),
            warmup=warmup,
        )
        results[engine] = run_in_fresh_process(job, show=f"{title:<22}")
    return results


def num_differing(results: dict[str, JobResult], engine: str) -> int:
    """Returns how many responses of an engine are not stock's tokens."""
    stock, tlt = results["stock"].token_ids, results[engine].token_ids
    return sum(stock[request_id] != tlt[request_id] for request_id in stock)


def all_equal(results: dict[str, JobResult]) -> bool:
    """Returns whether every engine gave stock's tokens."""
    return not any(num_differing(results, engine) for engine in results)


def print_comparison(results: dict[str, JobResult], model: str) -> None:
    """Prints a row an engine."""
    stock = results["stock"]
    lengths = [len(token_ids) for token_ids in stock.token_ids.values()]
    quantiles = ", ".join(f"p{round(100 * share)} {quantile(lengths, share):.0f}" for share in (0.1, 0.5, 0.9, 1.0))
    print(f"\n{model}, float32, greedy (temperature 0), {len(lengths)} prompts; response length, tokens: {quantiles}\n")
    columns = ("wall time, s", "tokens/s", "x stock", "tokens/step", "steps", "outputs equal")
    print(f"{'':<22}" + "".join(f"{column:>15}" for column in columns))
    for engine, result in results.items():
        differing = num_differing(results, engine)
        cells = [
            f"{result.wall_s:.1f}",
            f"{result.tokens_per_s:.1f}",
            f"{stock.wall_s / result.wall_s:.2f}",
            f"{result.acceptance_length:.2f}",
            str(len(result.steps)),
            "yes" if differing == 0 else f"NO: {differing}/{len(lengths)}",
        ]
        print(f"{ENGINES[engine]:<22}" + "".join(f"{cell:>15}" for cell in cells))


def plot(results: dict[str, JobResult], path: Path) -> None:
    """Draws running requests and tokens/s over time, all runs."""
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
    upper.set_title("The same batch, the same tokens" if all_equal(results) else "The same batch")
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
    warm_up(arguments)
    results = run_engines(arguments)
    print_comparison(results, model_name(arguments.model))
    picture = arguments.output / "demo.png"
    plot(results, picture)
    print(f"\nplot: {picture}   ({time.perf_counter() - began:.0f} s in all)")
    sys.exit(0 if all_equal(results) else 1)


if __name__ == "__main__":
    main()
