"""What the choices of training bring: the same passes over the same text, and the time of a step by precision."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm
from transformers import AutoConfig

from benchmarks.machine import new_result
from benchmarks.measure import print_rows
from benchmarks.options import DEFAULT_MODEL, model_name
from benchmarks.result import Row, Series, summarise
from tlt_engine.cli.warmup import HELD_OUT_EVERY
from tlt_engine.config import Precision
from tlt_engine.drafter.config import DrafterConfig
from tlt_engine.drafter.initialise import TargetWeights, initialise
from tlt_engine.drafter.model import DrafterModel
from tlt_engine.drafter_trainer.loss import TargetHead
from tlt_engine.drafter_trainer.sample import Sample
from tlt_engine.drafter_trainer.sample_store import SampleStore
from tlt_engine.drafter_trainer.trainer import Trainer, TrainerConfig
from tlt_engine.drafter_trainer.vocabulary import choose_draft_vocabulary
from tlt_engine.drafter_trainer.warmup import Evaluation, epoch, train

CHOICES: dict[str, tuple[str, TrainerConfig]] = {
    "last layer (default)": ("last_layer", TrainerConfig()),
    "first weights: head": ("head", TrainerConfig()),
    "first weights: random": ("random", TrainerConfig()),
    "products in float32": ("last_layer", TrainerConfig(precision="float32")),
    "a quarter of the learning rate": ("last_layer", TrainerConfig(learning_rate=TrainerConfig().learning_rate / 4)),
}


class Bench:
    """A target and recorded text."""

    def __init__(self, model: str, samples: list[Sample], draft_vocab_size: int) -> None:
        self.held_out = [sample for sample in samples if int(sample.req_id) % HELD_OUT_EVERY == 0]
        self.learnt = [sample for sample in samples if int(sample.req_id) % HELD_OUT_EVERY != 0]
        self._target = AutoConfig.from_pretrained(model)
        self._config = DrafterConfig.from_target(self._target, draft_vocab_size=draft_vocab_size)
        self._weights = TargetWeights(Path(model))
        self._embedding, self._head = self._weights.embedding, self._weights.head
        self._vocabulary = choose_draft_vocabulary(self.learnt, self._config.draft_vocab_size, self._config.vocab_size)

    def trainer(self, first_weights: str, config: TrainerConfig) -> Trainer:
        """Returns a trainer of a new drafter."""
        model = DrafterModel(self._config)
        model.set_draft_vocabulary(self._vocabulary)
        initialise(model, self._weights, self._target.num_hidden_layers, first_weights)
        return Trainer(model, self.embed, TargetHead(lambda: self._head), config)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Looks tokens up in the target's embedding."""
        return F.embedding(token_ids, self._embedding)

    def evaluations(self, trainer: Trainer, depth: int, title: str) -> list[Evaluation]:
        """Trains one pass and returns what the drafter was worth on the way."""
        with tqdm(desc=title) as bar:

            def report(evaluation: Evaluation, loss: float, is_best: bool) -> None:
                bar.update()
                bar.set_postfix(tokens=evaluation.num_tokens, length=evaluation.acceptance_length)

            return train(
                trainer,
                self.learnt,
                self.held_out,
                self.embed,
                num_epochs=1,
                depth=depth,
                evaluations_per_epoch=4,
                report=report,
            )

    def step_seconds(self, num_steps: int) -> dict[Precision, list[float]]:
        """Returns the seconds of each optimizer step by precision; the trainers take turns on the same text."""
        precisions: tuple[Precision, ...] = ("float32", "bfloat16")
        trainers = {name: self.trainer("last_layer", TrainerConfig(precision=name)) for name in precisions}
        seconds: dict[Precision, list[float]] = {name: [] for name in precisions}
        for number, step in enumerate(epoch(self.learnt, 0)):
            if number == num_steps + 2:
                break
            for name, trainer in trainers.items():
                began = time.perf_counter()
                trainer.step(step)
                if number >= 2:  # the first ones allocate
                    seconds[name].append(time.perf_counter() - began)
        return seconds


def step_rows(seconds: dict[Precision, list[float]]) -> list[Row]:
    """Makes the rows of the step times."""
    plain = ("float32", seconds["float32"])
    return [
        summarise(
            values,
            baseline=None if name == "float32" else plain,
            name=name,
            case="optimizer step of 512 tokens",
            metric="step_s",
            unit="s",
        )
        for name, values in seconds.items()
    ]


def main() -> None:
    """Runs the benchmark, prints its rows and, unless ``--quick``, writes its file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_training", description=__doc__)
    parser.add_argument("samples", type=Path, help="folder 'warmup' that tlt-engine warmup keeps with --keep-samples")
    parser.add_argument("--model", default=str(DEFAULT_MODEL))
    parser.add_argument("--draft-vocab-size", type=int, default=8192)
    parser.add_argument("--max-samples", type=int, default=300)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.max_samples = 24
    bench = Bench(
        arguments.model, list(SampleStore(arguments.samples))[: arguments.max_samples], arguments.draft_vocab_size
    )
    result = new_result(
        "training",
        "benchmarks.bench_training",
        {
            "model": model_name(arguments.model),
            "num_samples": len(bench.learnt),
            "num_tokens": sum(map(len, bench.learnt)),
            "num_held_out": len(bench.held_out),
            "draft_vocab_size": arguments.draft_vocab_size,
            "depth": arguments.depth,
            "recipe": TrainerConfig().recipe,
        },
    )
    result.rows += step_rows(bench.step_seconds(3 if arguments.quick else 15))
    for choice, (first_weights, config) in CHOICES.items():
        evaluations = bench.evaluations(bench.trainer(first_weights, config), arguments.depth, choice)
        points = [(float(past.num_tokens), past.acceptance_length) for past in evaluations]
        result.series.append(Series(name=choice, x="tokens_seen", y="acceptance_length", points=points))
        for case, evaluation in (("before training", evaluations[0]), ("after one pass", evaluations[-1])):
            result.rows.append(
                summarise(
                    [evaluation.acceptance_length], name=choice, case=case, metric="acceptance_length", unit="tokens"
                )
            )
    print_rows(result.rows)
    if not arguments.quick:
        print(f"written: {result.write().name}")


if __name__ == "__main__":
    main()
