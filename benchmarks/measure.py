"""Runs jobs in fresh processes, engines in turn, and turns what they measured into rows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engines import child_environment
from benchmarks.jobs import LIVE_BATCH_RANGES, Job, JobResult
from benchmarks.result import Row, Series, quantile, summarise, thin_out

REPOSITORY = Path(__file__).parent.parent


def run_in_fresh_process(job: Job, show: str | None) -> JobResult:
    """Runs one job in a process of its own and returns what it measured.

    Args:
        job: What to run.
        show: Text in front of the progress bar on stderr; None draws none.

    Raises:
        RuntimeError: the process failed; its last lines of stderr are in the text.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.worker_process"],
        input=json.dumps({"job": job.to_json(), "show": show}),
        stdout=subprocess.PIPE,
        stderr=None if show else subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env=child_environment(),
        check=False,
    )
    if done.returncode != 0:
        tail = "\n".join((done.stderr or "see above").splitlines()[-15:])
        raise RuntimeError(f"engine {job.engine}: its process ended with {done.returncode}: {tail}")
    return JobResult.from_json(json.loads(done.stdout))


MakeJob = Callable[[str, int, Mapping[str, JobResult]], Job]
"""Builds the job of an engine in a round, given what the engines before it measured in this round."""


def run_interleaved(
    engines: Sequence[str], repetitions: int, make_job: MakeJob, label: str
) -> dict[str, list[JobResult]]:
    """Runs engines A B C A B C ..., so that a slow minute of the machine hits all of them.

    Args:
        engines: Names, in the order of one round.
        repetitions: Rounds.
        make_job: Called once a run.
        label: Names the case in progress lines.

    Returns:
        By engine, one measurement a round.
    """
    results: dict[str, list[JobResult]] = {engine: [] for engine in engines}
    for repetition in range(repetitions):
        this_round: dict[str, JobResult] = {}
        for engine in engines:
            result = run_in_fresh_process(make_job(engine, repetition, this_round), show=None)
            this_round[engine] = result
            results[engine].append(result)
            print(
                f"{label} round {repetition + 1}/{repetitions} {engine}: {result.wall_s:.1f} s,"
                f" {result.num_tokens} tokens, {result.tokens_per_s:.1f} tokens/s,"
                f" acceptance length {result.acceptance_length:.2f}",
                file=sys.stderr,
                flush=True,
            )
    return results


@dataclass(frozen=True)
class Comparison:
    """The runs of one case and whom each engine is compared with."""

    case: str
    results: dict[str, list[JobResult]]
    baseline: str

    def outputs_equal(self, engine: str, other: str) -> bool:
        """Says whether all responses of two engines are equal token for token in every round."""
        pairs = zip(self.results[engine], self.results[other], strict=True)
        return all(mine.token_ids == theirs.token_ids for mine, theirs in pairs)

    def row(
        self,
        engine: str,
        metric: str,
        unit: str,
        value: Callable[[JobResult], float],
        *,
        case: str = "",
        baseline: str | None = None,
        outputs_equal: bool | None = None,
        p95: float | None = None,
    ) -> Row:
        """Makes the row of one metric of one engine; a baseline that is the engine itself counts as none."""
        other = None if baseline in (None, engine) else baseline
        return summarise(
            [value(result) for result in self.results[engine]],
            baseline=None if other is None else (other, [value(result) for result in self.results[other]]),
            name=engine,
            case=case or self.case,
            metric=metric,
            unit=unit,
            outputs_equal=outputs_equal,
            p95=p95,
        )

    def speed_rows(self, engine: str, outputs_equal: bool | None) -> list[Row]:
        """Makes the rows that every engine gets: tokens/s, wall time, plain step time and acceptance length."""
        against = {"baseline": self.baseline, "outputs_equal": outputs_equal}
        p95 = max(quantile(result.decode_step_ms() or [0.0], 0.95) for result in self.results[engine])
        return [
            self.row(engine, "tokens_per_s", "tokens/s", lambda result: result.tokens_per_s, **against),
            self.row(engine, "wall_s", "s", lambda result: result.wall_s, **against),
            self.row(
                engine,
                "step_ms",
                "ms",
                lambda result: quantile(result.decode_step_ms() or [0.0], 0.5),
                outputs_equal=outputs_equal,
                p95=round(p95, 3),
            ),
            self.row(engine, "acceptance_length", "tokens", lambda result: result.acceptance_length),
        ]

    def own_share_rows(self, engine: str) -> list[Row]:
        """Makes the rows of what TLT itself took of the wall time; none for stock's engines."""
        return [
            self.row(engine, f"{name}_share", "of wall time", lambda result, name=name: result.own_shares[name])
            for name in self.results[engine][0].own_shares
        ]

    def live_batch_rows(self, engine: str) -> list[Row]:
        """Makes the rows of seconds spent at each range of live requests."""
        return [
            self.row(
                engine,
                "live_batch_s",
                "s",
                lambda result, label=label: result.live_batch_seconds()[label],
                case=f"{self.case}, {label} live",
            )
            for label, _, _ in LIVE_BATCH_RANGES
        ]

    def curves(self, engine: str) -> list[Series]:
        """Makes the first round's curves: live requests and tokens/s over time."""
        return run_curves(engine, self.results[engine][0])


def run_curves(name: str, result: JobResult, bin_s: float = 1.0) -> list[Series]:
    """Returns live requests at each step, and tokens/s in bins of ``bin_s`` seconds, over time."""
    live = [(step.end_s, float(step.num_live)) for step in result.steps]
    bins: dict[int, int] = {}
    for step in result.steps:
        bins[int(step.end_s / bin_s)] = bins.get(int(step.end_s / bin_s), 0) + step.num_tokens
    rate = [(index * bin_s, bins.get(index, 0) / bin_s) for index in range(max(bins, default=0) + 1)]
    return [
        Series(name=name, x="time_s", y="live_requests", points=thin_out(live)),
        Series(name=name, x="time_s", y="tokens_per_s", points=thin_out(rate)),
    ]


def print_rows(rows: Sequence[Row]) -> None:
    """Prints the rows as a table of aligned columns."""
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}x {row.baseline}"
        equal = {None: "", True: "outputs equal", False: "outputs DIFFER"}[row.outputs_equal]
        print(f"{row.case:<22} {row.name:<13} {row.metric:<18} {row.value:>10.2f} {row.unit:<9} {ratio:<20} {equal}")
