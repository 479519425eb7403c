"""What training costs and yields: how much decoding feels it, how much idle time it uses, packing, checkpoints, swaps.

One engine serves, and its trainer is switched on and off in turn, so both are measured in the same minutes.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.bench_acceptance import TASKS
from benchmarks.engines import ENGINE_ENVIRONMENT
from benchmarks.machine import new_result
from benchmarks.measure import print_rows
from benchmarks.options import DEFAULT_MODEL, model_name
from benchmarks.result import Result, Row, quantile, summarise
from tlt_engine.drafter.checkpoint import load_checkpoint
from tlt_engine.drafter.initialise import TargetWeights
from tlt_engine.drafter.whole_file import write_whole
from tlt_engine.drafter_trainer.checkpoints import TrainingCheckpoints
from tlt_engine.drafter_trainer.loss import TargetHead
from tlt_engine.drafter_trainer.sample import Sample
from tlt_engine.drafter_trainer.snapshot import snapshot
from tlt_engine.drafter_trainer.trainer import Trainer, TrainerConfig

SEED = 21
MAX_SEQS = 32
MICRO_BATCH_SAMPLES = 8
WAIT_S = 20.0
"""After a rollout, as for the other engines of a reinforcement learning step."""


class Served:
    """An engine with a trained drafter and a trainer that is told when to work."""

    def __init__(self, model: str, drafter: Path) -> None:
        from transformers import AutoTokenizer
        from vllm import LLM

        from tlt_engine.server.recording import read_prompts

        self.llm = LLM(
            model,
            dtype="float32",
            enforce_eager=True,
            max_model_len=2048,
            max_num_seqs=MAX_SEQS,
            enable_prefix_caching=False,
            # Chains of a fixed length: what is compared is the time of steps of equal work.
            speculative_config={
                "method": "tlt",
                "drafter": str(drafter),
                "num_speculative_tokens": 4,
                "learned": {"top_k": 1, "min_reach": 0.0},
                "adaptive": {"policy": "fixed", "strategies": [{"drafter": "learned"}]},
                "train": {"mode": "off"},
            },
        )
        self.prompts = read_prompts(f"reasoning-gym:{TASKS}", AutoTokenizer.from_pretrained(model), 256, SEED)
        self._num_requests = 0

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls the worker."""
        return self.llm.collective_rpc(method, args=arguments)[0]

    def training(self) -> dict[str, Any]:
        """Returns the trainer's state."""
        training: dict[str, Any] = self.call("tlt_status")["training"]
        return training

    def generate(self, numbers: Sequence[int], max_tokens: int, temperature: float = 0.0) -> list[tuple[float, int]]:
        """Serves prompts side by side; returns the seconds and the emitted tokens of each step after the first."""
        from vllm import SamplingParams

        engine = self.llm.llm_engine
        for number in numbers:
            params = SamplingParams(
                temperature=temperature,
                max_tokens=max_tokens,
                ignore_eos=temperature == 0,
                seed=number,
                detokenize=False,
            )
            self._num_requests += 1
            engine.add_request(str(self._num_requests), {"prompt_token_ids": self.prompts[number]}, params)
        seen: dict[str, int] = {}
        steps = []
        while engine.has_unfinished_requests():
            started = time.perf_counter()
            outputs = engine.step()
            seconds = time.perf_counter() - started
            tokens = 0
            for output in outputs:
                length = len(output.outputs[0].token_ids)
                tokens += length - seen.get(output.request_id, 0)
                seen[output.request_id] = length
            steps.append((seconds, tokens))
        return steps[1:]

    def switch(self, mode: str) -> None:
        """Switches the trainer and waits until it does as it is told."""
        self.call("tlt_train", mode)
        time.sleep(0.3 if mode != "off" else 2.0)


def felt(served: Served, result: Result, rounds: int, batch: int, max_tokens: int) -> None:
    """Decode steps in low occupancy with the trainer working beside them and without, in turn."""
    seconds: dict[str, list[list[float]]] = {"off": [], "auto": []}
    rates: dict[str, list[float]] = {"off": [], "auto": []}
    trained = 0.0
    for number in range(rounds):
        prompts = [(number * batch + place) % 64 for place in range(batch)]
        for mode in ("off", "auto") if number % 2 == 0 else ("auto", "off"):
            before = served.training()["trained_seconds"]
            served.switch(mode)
            steps = served.generate(prompts, max_tokens)
            seconds[mode].append([one for one, _ in steps])
            rates[mode].append(sum(tokens for _, tokens in steps) / sum(one for one, _ in steps))
            trained += served.training()["trained_seconds"] - before
    case = f"decode, batch {batch}"
    for metric, share in (("p50", 0.5), ("p95", 0.95)):
        values = {mode: [1e3 * quantile(one, share) for one in runs] for mode, runs in seconds.items()}
        for mode in ("off", "auto"):
            result.rows.append(
                summarise(
                    values[mode],
                    baseline=None if mode == "off" else ("off", values["off"]),
                    name=mode,
                    case=case,
                    metric=f"step_ms_{metric}",
                    unit="ms",
                )
            )
        every = {mode: [1e3 * one for run in runs for one in run] for mode, runs in seconds.items()}
        pooled = {mode: quantile(steps, share) for mode, steps in every.items()}
        result.rows.append(
            summarise(
                [pooled["auto"]],
                baseline=("off", [pooled["off"]]),
                name="auto",
                case=f"{case}, all steps together",
                metric=f"step_ms_{metric}",
                unit="ms",
            )
        )
    result.rows.append(rate_row(case, rates))
    training = served.training()
    result.settings[f"trainer, {case}"] = {
        "trained_seconds": trained,
        **{key: training[key] for key in ("slowdown", "duty", "steps", "tokens")},
    }


def rate_row(case: str, rates: dict[str, list[float]]) -> Row:
    """Makes the row of tokens per second with the trainer switched on, against off."""
    return summarise(
        rates["auto"], baseline=("off", rates["off"]), name="auto", case=case, metric="tokens_per_s", unit="tokens/s"
    )


def busy(served: Served, result: Result, rounds: int, max_tokens: int) -> None:
    """A full engine: the gate is closed, so nothing may be felt, and no piece may start."""
    rates: dict[str, list[float]] = {"off": [], "auto": []}
    pieces = 0
    for number in range(rounds):
        for mode in ("off", "auto") if number % 2 == 0 else ("auto", "off"):
            served.switch(mode)
            engine_steps = []
            before: int | None = None
            stock_step = served.llm.llm_engine.step

            def step(stock: Callable[[], Any] = stock_step) -> Any:
                """Counts what starts from the second step on; the first one closes the gate."""
                nonlocal before
                outputs = stock()
                if before is None:
                    before = pieces_started(served.training())
                return outputs

            served.llm.llm_engine.step = step  # type: ignore[method-assign]
            engine_steps = served.generate(range(MAX_SEQS), max_tokens)
            served.llm.llm_engine.step = stock_step  # type: ignore[method-assign]
            if mode == "auto":
                pieces += max(0, pieces_started(served.training()) - (before or 0))
            rates[mode].append(sum(tokens for _, tokens in engine_steps) / sum(one for one, _ in engine_steps))
    case = f"full, batch {MAX_SEQS}"
    result.rows.append(rate_row(case, rates))
    result.rows.append(summarise([pieces], name="auto", case=case, metric="pieces started", unit="", better="lower"))


def pieces_started(training: dict[str, Any]) -> int:
    """Returns the pieces that have ended, and the one under way."""
    return int(training["pieces"]) + int(training["is_computing"])


def idle(served: Served, result: Result, max_tokens: int) -> None:
    """A rollout, its tail, and the wait that follows: the share of the time the gate was open that was trained."""
    served.switch("auto")
    served.call("tlt_target_updated")  # training that has converged has no use for idle time
    before = served.training()
    served.generate(range(64, 64 + MAX_SEQS), max_tokens, temperature=1.0)
    time.sleep(WAIT_S)
    after = served.training()
    trained, available = (after[key] - before[key] for key in ("trained_seconds", "available_seconds"))
    result.rows.append(
        summarise([trained / available], name="auto", case="long-tail rollout", metric="idle time used", unit="share")
    )
    result.settings["long-tail rollout"] = {"trained_seconds": trained, "available_seconds": available}


def swaps(served: Served, result: Result, drafter: Path, times: int) -> None:
    """How long weights that go live hold the engine up."""
    values = []
    for _ in range(times):
        started = time.perf_counter()
        served.call("tlt_publish", str(drafter))
        values.append(1e3 * (time.perf_counter() - started))
    result.rows.append(
        summarise(values, name="from outside", case="publish, file read and checked", metric="blocked", unit="ms")
    )
    longest = 1e3 * served.training()["longest_swap_seconds"]
    result.rows.append(summarise([longest], name="trainer", case="publish", metric="longest swap", unit="ms"))


def checkpoints(result: Result, trainer: Trainer, target: dict[str, torch.Tensor], rounds: int) -> None:
    """How long training stands still for a checkpoint: what is trained, beside it; against everything, waited for."""
    blocked, full = [], []
    with tempfile.TemporaryDirectory() as folder:
        kept = TrainingCheckpoints(Path(folder) / "kept")
        for number in range(rounds):
            started = time.perf_counter()
            while not kept.save(number, snapshot(trainer.state_dict())):
                time.sleep(0.01)
            blocked.append(1e3 * (time.perf_counter() - started))
            time.sleep(3.0)  # as after a step or two; the next one finds the writer free
            started = time.perf_counter()
            everything = {**trainer.state_dict(), "target": target}
            write_whole(Path(folder) / "full.pt", partial(torch.save, everything))
            full.append(1e3 * (time.perf_counter() - started))
        kept.close()
    for name, values, baseline in (("full, waited for", full, None), ("selective, beside", blocked, full)):
        result.rows.append(
            summarise(
                values,
                baseline=None if baseline is None else ("full, waited for", baseline),
                name=name,
                case="checkpoint",
                metric="blocked",
                unit="ms",
            )
        )


def packing(result: Result, trainer: Trainer, samples: Sequence[Sample], rounds: int) -> None:
    """Samples trained a second, packed against padded to the longest of the micro-batch."""
    rates: dict[str, list[float]] = {"padded": [], "packed": []}
    for number in range(rounds):
        chosen = samples[number * MICRO_BATCH_SAMPLES : (number + 1) * MICRO_BATCH_SAMPLES]
        longest = max(map(len, chosen))
        for name, batches in (
            ("padded", [[padded(sample, longest)] for sample in chosen]),
            ("packed", [list(chosen)]),
        ):
            started = time.perf_counter()
            for batch in batches:  # a sample at a time: side by side in one mask, padding would cost even more
                trainer.accumulate(batch)
            rates[name].append(len(chosen) / (time.perf_counter() - started))
            trainer.abandon()
    lengths = sorted(map(len, samples))
    result.settings["packing"] = {"samples": len(samples), "lengths": lengths, "micro_batch": MICRO_BATCH_SAMPLES}
    for name in rates:
        result.rows.append(
            summarise(
                rates[name],
                baseline=None if name == "padded" else ("padded", rates["padded"]),
                name=name,
                case=f"micro-batch of {MICRO_BATCH_SAMPLES} samples",
                metric="samples_per_s",
                unit="samples/s",
            )
        )


def padded(sample: Sample, length: int) -> Sample:
    """Fills a sample up with tokens that are computed like all others."""
    missing = length - len(sample)
    fields = {
        name: F.pad(getattr(sample, name), (0, 0) * (getattr(sample, name).ndim - 1) + (0, missing))
        for name in ("token_ids", "features", "final_hidden")
    }
    return Sample(**{**vars(sample), **fields})


def record(model: str, num_prompts: int, max_tokens: int) -> list[Sample]:
    """Records responses of natural length at temperature 1, shuffled by their prompts' order."""
    from transformers import AutoTokenizer

    from tlt_engine.server.recording import RecordingEngine, read_prompts

    prompts = read_prompts(f"reasoning-gym:{TASKS}", AutoTokenizer.from_pretrained(model), num_prompts, SEED)
    engine = RecordingEngine(model, max_model_len=2048, max_num_seqs=MAX_SEQS, dtype="float32")
    samples = engine.generate(prompts, temperatures=[1.0] * num_prompts, max_tokens=max_tokens, first_seed=SEED)
    engine.close()
    return sorted(samples, key=lambda sample: int(sample.req_id))


def main() -> None:
    """Runs the benchmark, prints its rows and, unless ``--quick``, writes its file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_trainer", description=__doc__)
    parser.add_argument("drafter", type=Path, help="directory of a trained drafter")
    parser.add_argument("--model", default=str(DEFAULT_MODEL))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=1024, help="longest response of the rollout")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.max_tokens = 1, 64
    os.environ.update(ENGINE_ENVIRONMENT)
    rounds = arguments.rounds
    result = new_result(
        "trainer",
        "benchmarks.bench_trainer",
        {"model": model_name(arguments.model), "rounds": rounds, "max_tokens": arguments.max_tokens},
    )
    samples = record(arguments.model, 8 * rounds, arguments.max_tokens)
    weights = TargetWeights(Path(arguments.model))
    embedding, head = weights.embedding, weights.head
    trainer = Trainer(
        load_checkpoint(arguments.drafter).build().float(),
        lambda token_ids: F.embedding(token_ids, embedding),
        TargetHead(lambda: head),
        TrainerConfig(),
    )
    trainer.step([[samples[0]]])
    packing(result, trainer, samples, rounds)
    trainer.step([[samples[0]]])
    checkpoints(result, trainer, {name: weights[name] for name in weights.names()}, min(5, rounds))
    served = Served(arguments.model, arguments.drafter.resolve())
    served.generate(range(64, 80), 256, temperature=1.0)  # text to learn from, and kernels warm
    for batch in (1, 2):
        felt(served, result, rounds, batch, 128 if not arguments.quick else 16)
    busy(served, result, max(1, rounds // 2), 64)
    idle(served, result, arguments.max_tokens)
    swaps(served, result, arguments.drafter, 5)
    print_rows(result.rows)
    if not arguments.quick:
        print(f"written: {result.write().name}")
    served.llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
