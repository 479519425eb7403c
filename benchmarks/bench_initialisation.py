"""Which first weights a drafter should have: the same training from each, acceptance over tokens seen."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch.nn.functional as F
from tqdm import tqdm
from transformers import AutoConfig

from benchmarks.machine import new_result
from benchmarks.measure import print_rows
from benchmarks.options import DEFAULT_MODEL, model_name
from benchmarks.result import Series, summarise
from tlt_engine.drafter.config import DrafterConfig
from tlt_engine.drafter.initialise import INITIALISATIONS, TargetWeights, initialise
from tlt_engine.drafter.model import DrafterModel
from tlt_engine.drafter_trainer.sample_store import SampleStore
from tlt_engine.drafter_trainer.trainer import Trainer, TrainerConfig
from tlt_engine.drafter_trainer.warmup import Evaluation, choose_draft_vocabulary, train

HELD_OUT_EVERY = 12


def main() -> None:
    """Runs the benchmark, prints its rows and, unless ``--quick``, writes its file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_initialisation", description=__doc__)
    parser.add_argument("samples", type=Path, help="folder 'warmup' that tlt-engine warmup keeps with --keep-samples")
    parser.add_argument("--model", default=str(DEFAULT_MODEL))
    parser.add_argument("--draft-vocab-size", type=int, default=8192)
    parser.add_argument("--max-samples", type=int, default=300)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.max_samples = 24
    samples = list(SampleStore(arguments.samples))[: arguments.max_samples]
    held_out = [sample for sample in samples if int(sample.req_id) % HELD_OUT_EVERY == 0]
    learnt = [sample for sample in samples if int(sample.req_id) % HELD_OUT_EVERY != 0]
    target = AutoConfig.from_pretrained(arguments.model)
    config = DrafterConfig.from_target(target, draft_vocab_size=arguments.draft_vocab_size)
    weights = TargetWeights(Path(arguments.model))
    embedding, head = weights.embedding, weights.head
    vocabulary = choose_draft_vocabulary(learnt, config.draft_vocab_size, config.vocab_size)
    result = new_result(
        "initialisation",
        "benchmarks.bench_initialisation",
        {
            "model": model_name(arguments.model),
            "num_samples": len(learnt),
            "num_tokens": sum(map(len, learnt)),
            "num_held_out": len(held_out),
            "draft_vocab_size": config.draft_vocab_size,
            "depth": arguments.depth,
            "recipe": TrainerConfig().recipe,
            "learning_rate": TrainerConfig().learning_rate,
        },
    )
    for method in INITIALISATIONS:
        model = DrafterModel(config)
        model.set_draft_vocabulary(vocabulary)
        initialise(model, weights, target.num_hidden_layers, method)
        trainer = Trainer(
            model, lambda ids: F.embedding(ids, embedding), lambda hidden: F.linear(hidden, head), TrainerConfig()
        )
        bar = tqdm(desc=method)

        def report(evaluation: Evaluation, loss: float, is_best: bool, bar: tqdm = bar) -> None:
            bar.update()
            bar.set_postfix(tokens=evaluation.num_tokens, length=evaluation.acceptance_length)

        evaluations = train(
            trainer,
            learnt,
            held_out,
            lambda ids: F.embedding(ids, embedding),
            num_epochs=1,
            depth=arguments.depth,
            evaluations_per_epoch=6,
            report=report,
        )
        bar.close()
        points = [(float(past.num_tokens), past.acceptance_length) for past in evaluations]
        result.series.append(Series(name=method, x="tokens_seen", y="acceptance_length", points=points))
        for case, evaluation in (("before training", evaluations[0]), ("after training", evaluations[-1])):
            result.rows.append(
                summarise(
                    [evaluation.acceptance_length], name=method, case=case, metric="acceptance_length", unit="tokens"
                )
            )
    print_rows(result.rows)
    if not arguments.quick:
        print(f"written: {result.write().name}")


if __name__ == "__main__":
    main()
