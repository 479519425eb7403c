"""Greedy decoding at fixed batch sizes: the adaptive engine against every strategy that it could have been set to.

Every engine and every batch size gets a fresh process, so what the adaptive engine loses by learning is in its time.
It needs the machine to itself: strategies are chosen by measured time.
"""

from __future__ import annotations

import argparse

from benchmarks.bench_decode import batch_rows, make_jobs
from benchmarks.engines import FIXED_STRATEGIES
from benchmarks.machine import new_result
from benchmarks.measure import Comparison, print_rows, run_interleaved
from benchmarks.options import add_common_options, chosen_engines, exported_drafter, model_name
from benchmarks.prompts import MATH_TASKS
from benchmarks.result import Row

FIXED = tuple(f"tlt-only-{name}" for name in FIXED_STRATEGIES)
ADAPTIVE = "tlt-learned"


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_adaptive", description=__doc__)
    add_common_options(parser, ("stock", "tlt-off"), ("stock",), (*FIXED, ADAPTIVE))
    parser.set_defaults(repetitions=2)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--num-prompts", type=int, default=6, help="at least; a larger batch size raises it")
    parser.add_argument("--max-tokens", type=int, default=160)
    arguments = parser.parse_args()
    if arguments.drafter is None:
        parser.error("--drafter: name the directory of a trained drafter")
    arguments.engines = chosen_engines(arguments)
    if arguments.quick:
        arguments.batch_sizes, arguments.num_prompts = [2], 2
        arguments.max_tokens, arguments.repetitions = 32, 1
    return arguments


def best_fixed_row(comparison: Comparison) -> Row:
    """Compares the adaptive engine with the strategy that was fastest at this batch size, none included."""
    fixed = [name for name in comparison.results if name not in (ADAPTIVE, "stock")]

    def mean_speed(name: str) -> float:
        results = comparison.results[name]
        return sum(result.tokens_per_s for result in results) / len(results)

    best = max(fixed, key=mean_speed)
    return comparison.row(
        ADAPTIVE,
        "tokens_per_s against the best fixed strategy",
        "tokens/s",
        lambda result: result.tokens_per_s,
        baseline=best,
        outputs_equal=comparison.outputs_equal(ADAPTIVE, best),
    )


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
    result = new_result("adaptive", "benchmarks.bench_adaptive", settings)
    with exported_drafter(arguments.drafter) as arguments.exported_drafter:
        for batch in arguments.batch_sizes:
            jobs = make_jobs(arguments, batch)
            runs = run_interleaved(
                arguments.engines, arguments.repetitions, lambda name, *_, jobs=jobs: jobs[name], f"batch={batch}"
            )
            comparison = Comparison(f"batch={batch}", runs, baseline="stock")
            result.rows += [*batch_rows(comparison), best_fixed_row(comparison)]
            print_rows(result.rows[-1:])
    print_rows(result.rows)
    if not arguments.quick:
        print(f"written: {result.write(arguments.output).name}")


if __name__ == "__main__":
    main()
