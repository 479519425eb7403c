"""A drafter that starts from nothing and follows its target: acceptance length over time on one stream of requests.

First a cold start: bursts of requests, as of a rollout, with gaps, and no drafter; against the same requests with
look-up alone, and with a drafter that was warmed up before. Then drift: the target is replaced by a fine-tuned one; the
drafter that goes on training against the same one frozen, and against one that was warmed up on the new target.

Nothing else may run meanwhile: whether drafts are made is decided by measured time, and on a busy machine they are not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.nn.functional as F

from benchmarks.adaptation_run import StreamJob
from benchmarks.bench_acceptance import HELD_OUT_SEED, TASKS
from benchmarks.drifted_target import make_drifted_target
from benchmarks.engines import child_environment
from benchmarks.machine import new_result
from benchmarks.measure import print_rows
from benchmarks.options import DEFAULT_MODEL, model_name
from benchmarks.result import Result, Series, summarise, thin_out
from tlt_engine.drafter.checkpoint import load_checkpoint
from tlt_engine.drafter.initialise import TargetWeights
from tlt_engine.drafter_trainer.acceptance import chain_acceptance

WINDOW_BURSTS = 8
COLD_SEED, DRIFT_SEED = 7, 8
DEPTH = 4

Requests = list[dict[str, Any]]


class Runs:
    """Jobs and what came of them, in a folder: what is there already is not run again."""

    def __init__(self, folder: Path, model: str) -> None:
        self.folder = folder.resolve()
        self._model = model
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, name: str, speculative_config: dict[str, Any], **job: Any) -> dict[str, Any]:
        """Serves one stream, unless its output is there."""
        output = self.folder / f"{name}.json"
        if not output.exists():
            print(f"-- {name}", flush=True)
            stream = StreamJob(
                model=self._model,
                speculative_config={"method": "tlt", **speculative_config},
                output=str(output),
                tasks=TASKS,
                **job,
            )
            subprocess.run(
                [sys.executable, "-m", "benchmarks.adaptation_run"],
                input=json.dumps(asdict(stream)),
                text=True,
                check=True,
                env=child_environment(),
            )
        result: dict[str, Any] = json.loads(output.read_text())
        return result


def lengths(requests: Requests, temperature: float | None = None) -> float:
    """Returns the acceptance length in the tails of bursts, where few requests run and drafts are made."""
    chosen = [one for one in requests if temperature in (None, one["temperature"])]
    return sum(one["tail_tokens"] for one in chosen) / max(1, sum(one["tail_steps"] for one in chosen))


def curve(requests: Requests, minute_of_burst: dict[int, float]) -> list[tuple[float, float]]:
    """Returns acceptance length over minutes, a point for every few bursts."""
    last = max(one["burst"] for one in requests)
    points = []
    for first in range(0, last + 1, WINDOW_BURSTS):
        window = [one for one in requests if first <= one["burst"] < first + WINDOW_BURSTS]
        points.append((minute_of_burst[min(last, first + WINDOW_BURSTS - 1)], lengths(window)))
    return points


def minutes(requests: Requests) -> dict[int, float]:
    """Returns when each burst arrived."""
    return {one["burst"]: one["arrived_s"] / 60 for one in requests}


def passes_for_good(points: list[tuple[float, float]], others: list[tuple[float, float]]) -> float | None:
    """Returns the minute from which one curve stays above another; None if it does not."""
    minute = None
    for (when, mine), (_, theirs) in zip(points, others, strict=True):
        if mine <= theirs:
            minute = None
        elif minute is None:
            minute = when
    return minute


def from_burst(requests: Requests, burst: int) -> Requests:
    """Returns the requests from a burst on."""
    return [one for one in requests if one["burst"] >= burst]


def held_out_chain(model: str, drafters: dict[str, Path]) -> dict[str, float]:
    """Returns the acceptance length of each drafter's greedy chain on the target's answers to held-out prompts."""
    from transformers import AutoTokenizer

    from tlt_engine.server.recording import RecordingEngine, read_prompts

    prompts = read_prompts(f"reasoning-gym:{TASKS}", AutoTokenizer.from_pretrained(model), 32, HELD_OUT_SEED)
    engine = RecordingEngine(model, max_model_len=1024, max_num_seqs=32, dtype="float32")
    samples = engine.generate(prompts, temperatures=[0.0] * 32, max_tokens=256, first_seed=0)
    engine.close()
    embedding = TargetWeights(Path(model)).embedding
    found = {}
    for name, folder in drafters.items():
        drafter = load_checkpoint(folder).build().float()
        found[name] = 1 + sum(chain_acceptance(drafter, samples, lambda ids: F.embedding(ids, embedding), DEPTH))
    return found


def cold_start(run: Runs, result: Result, arguments: argparse.Namespace) -> Path:
    """Measures learning from nothing; returns the drafter that came of it."""
    kept = run.folder / "cold_drafter"
    train = {"max_running": 4, "checkpoint_dir": str(kept)}
    stream = {"seed": COLD_SEED, "seconds": 60.0 * arguments.minutes, "mean_gap_s": arguments.gap}
    cold = run("cold", {"train": train}, **stream)
    num_bursts = 1 + max(one["burst"] for one in cold["requests"])
    lookup = run("lookup", {"drafter": "ngram"}, seed=COLD_SEED, num_bursts=num_bursts)
    last = num_bursts - num_bursts // 4
    frozen = {"drafter": str(arguments.drafter), "train": {"enabled": False}}
    warm = run("warm", frozen, seed=COLD_SEED, first_burst=last, num_bursts=num_bursts - last)
    minute_of = minutes(cold["requests"])
    curves = {name: curve(one["requests"], minute_of) for name, one in (("cold", cold), ("lookup", lookup))}
    result.series += [
        Series(name=f"cold start, {name}", x="minute", y="acceptance_length", points=thin_out(points))
        for name, points in curves.items()
    ]
    result.series.append(_held_out_series("cold start", cold))
    for temperature in (None, 0.0, 1.0):
        case = "last quarter of the stream" + ("" if temperature is None else f", temperature {temperature:g}")
        value = {
            "cold": lengths(from_burst(cold["requests"], last), temperature),
            "lookup": lengths(from_burst(lookup["requests"], last), temperature),
            "warm": lengths(warm["requests"], temperature),
        }
        for name, baseline in (("cold", "warm"), ("cold", "lookup"), ("warm", "lookup")):
            _row(result, name, case, value[name], baseline, value[baseline])
    passed = passes_for_good(curves["cold"], curves["lookup"])
    if passed is not None:
        row = summarise([passed], name="cold", case="passes look-up", metric="after", unit="min", better="lower")
        result.rows.append(row)
    chains = held_out_chain(arguments.model, {"cold": kept, "warm": arguments.drafter})
    _row(result, "cold", "chain of 4, held-out prompts, temperature 0", chains["cold"], "warm", chains["warm"])
    _training_rows(result, "cold start", cold["states"][-1]["training"])
    return kept


def drift(run: Runs, result: Result, arguments: argparse.Namespace, kept: Path) -> None:
    """Measures how a drafter follows a target that changes under it."""
    new_target = run.folder / "new_target"
    if not (new_target / "config.json").exists():
        make_drifted_target(arguments.model, TASKS, new_target, num_prompts=arguments.fine_tuning_prompts)
    seconds = 60.0 * arguments.drift_minutes
    stream = {"seed": DRIFT_SEED, "seconds": seconds, "mean_gap_s": arguments.gap}
    at_burst = arguments.drift_burst
    replaced = {"new_target": str(new_target)}
    adapted_folder = run.folder / "adapted_drafter"
    train = {"max_running": 4, "checkpoint_dir": str(adapted_folder)}
    served = {"drafter": str(kept)}
    adapting = run("adapting", {**served, "train": train}, **stream, **replaced, new_target_at=at_burst)
    num_bursts = 1 + max(one["burst"] for one in adapting["requests"])
    still = {**served, "train": {"enabled": False}}
    frozen = run("frozen", still, seed=DRIFT_SEED, num_bursts=num_bursts, **replaced, new_target_at=at_burst)
    warmed_folder = run.folder / "new_drafter"
    if not (warmed_folder / "drafter.safetensors").exists():
        warm_up(str(new_target), kept, warmed_folder, arguments.warm_up_tokens)
    last = num_bursts - num_bursts // 4
    warmed = run(
        "warmed",
        {**still, "drafter": str(warmed_folder)},
        seed=DRIFT_SEED,
        first_burst=last,
        num_bursts=num_bursts - last,
        **replaced,
        new_target_at=0,
    )
    minute_of = minutes(adapting["requests"])
    for name, one in (("adapting", adapting), ("frozen", frozen)):
        points = curve(one["requests"], minute_of)
        result.series.append(Series(name=f"drift, {name}", x="minute", y="acceptance_length", points=thin_out(points)))
    result.series.append(_held_out_series("drift", adapting))
    result.settings["target_replaced_at_minute"] = round(minute_of[at_burst], 2)
    before = [one for one in frozen["requests"] if one["burst"] < at_burst]
    after = from_burst(frozen["requests"], at_burst)
    _row(result, "frozen", "after the target was replaced", lengths(after), "frozen before", lengths(before))
    late = {
        "adapting": lengths(from_burst(adapting["requests"], last)),
        "frozen": lengths(from_burst(frozen["requests"], last)),
        "warmed": lengths(warmed["requests"]),
    }
    for name, baseline in (("adapting", "warmed"), ("adapting", "frozen"), ("warmed", "frozen")):
        _row(result, name, "drift, last quarter", late[name], baseline, late[baseline])
    folders = {"frozen": kept, "adapting": adapted_folder, "warmed": warmed_folder}
    chains = held_out_chain(str(new_target), folders)
    for name in ("frozen", "adapting"):
        _row(result, name, "chain of 4, new target, temperature 0", chains[name], "warmed", chains["warmed"])
    _training_rows(result, "drift", adapting["states"][-1]["training"])


def warm_up(target: str, initial: Path, folder: Path, num_tokens: int) -> None:
    """Warms a drafter up on a target, from another drafter's weights."""
    command = f"warmup {target} --data reasoning-gym:{TASKS} --tokens {num_tokens} --epochs 3 --dtype float32"
    subprocess.run(
        [sys.executable, "-m", "tlt_engine", *command.split(), "--initialisation", str(initial), "--out", str(folder)],
        check=True,
        env=child_environment(),
    )


def plot(result: Result, path: Path) -> None:
    """Draws both streams."""
    import matplotlib

    matplotlib.use("Agg")  # machines that run this have no display
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, sharey=True, figsize=(11, 4), layout="constrained")
    for axis, part in zip(axes, ("cold start", "drift"), strict=True):
        for series in result.series:
            if series.name.startswith(part):
                axis.plot(*zip(*series.points, strict=True), label=series.name.removeprefix(f"{part}, "))
        axis.set_title(part)
        axis.set_xlabel("minutes")
        axis.grid(alpha=0.3)
        axis.legend()
    if "target_replaced_at_minute" in result.settings:
        axes[1].axvline(result.settings["target_replaced_at_minute"], color="gray", linestyle="--")
    axes[0].set_ylabel("acceptance length")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _row(result: Result, name: str, case: str, value: float, baseline: str, base: float) -> None:
    result.rows.append(
        summarise(
            [value],
            baseline=(baseline, [base]),
            name=name,
            case=case,
            metric="acceptance_length",
            unit="tokens",
        )
    )


def _held_out_series(part: str, run: dict[str, Any]) -> Series:
    states = [state for state in run["states"] if state["training"]["live_acceptance_length"] is not None]
    points = [(state["s"] / 60, state["training"]["live_acceptance_length"]) for state in states]
    return Series(name=f"{part}, chain on held-out text", x="minute", y="acceptance_length", points=thin_out(points))


def _training_rows(result: Result, case: str, training: dict[str, Any]) -> None:
    result.settings[f"training, {case}"] = {
        key: training[key]
        for key in ("steps", "tokens", "publications", "trained_seconds", "available_seconds", "slowdown", "phase")
    }


def main() -> None:
    """Runs the benchmark, prints its rows and, unless ``--quick``, writes its file and its plot."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_adaptation", description=__doc__)
    parser.add_argument("drafter", type=Path, help="directory of a drafter that was warmed up on the model")
    parser.add_argument("--model", default=str(DEFAULT_MODEL))
    parser.add_argument("--minutes", type=float, default=29.0, help="of the cold start")
    parser.add_argument("--drift-minutes", type=float, default=15.0)
    parser.add_argument("--gap", type=float, default=12.0, help="mean seconds between two bursts of 12 requests")
    parser.add_argument("--drift-burst", type=int, default=12, help="when the target is replaced")
    parser.add_argument("--fine-tuning-prompts", type=int, default=320)
    parser.add_argument("--warm-up-tokens", type=int, default=60_000)
    parser.add_argument("--work", type=Path, required=True, help="folder of runs; what is there is not run again")
    parser.add_argument("--cold-start-only", action="store_true")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    arguments.drafter = arguments.drafter.resolve()
    if arguments.quick:
        arguments.minutes, arguments.drift_minutes, arguments.drift_burst = 1.0, 0.5, 4
        arguments.fine_tuning_prompts, arguments.warm_up_tokens = 8, 2000
    settings = {
        key: getattr(arguments, key)
        for key in ("minutes", "drift_minutes", "gap", "fine_tuning_prompts", "warm_up_tokens")
    }
    result = new_result(
        "adaptation",
        "benchmarks.bench_adaptation",
        {"model": model_name(arguments.model), "tasks": TASKS.split("+"), "burst_size": 12, **settings},
    )
    run = Runs(arguments.work, str(Path(arguments.model).resolve()))
    kept = cold_start(run, result, arguments)
    if not arguments.cold_start_only:
        drift(run, result, arguments, kept)
    print_rows(result.rows)
    if not arguments.quick:
        path = result.write()
        plot(result, path.with_suffix(".png"))
        print(f"written: {path.name} and its plot")


if __name__ == "__main__":
    main()
