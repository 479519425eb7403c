"""How much of the context a drafter has to see: acceptance by context length and window, same weights.

The context is a conversation: the target's own earlier answers with their questions, then one more question.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
from tqdm import tqdm
from transformers import AutoTokenizer

from benchmarks.bench_acceptance import HELD_OUT_SEED, TASKS, Replay, replay
from benchmarks.machine import new_result
from benchmarks.measure import print_rows
from benchmarks.options import DEFAULT_MODEL, model_name
from benchmarks.result import Result, Series, summarise
from tlt_engine.drafter.checkpoint import load_checkpoint
from tlt_engine.drafter.initialise import TargetWeights
from tlt_engine.drafter.runtime import TreeShape
from tlt_engine.drafter_trainer.sample import Sample

CONTEXTS = (512, 2048, 6144)
WINDOWS = (256, 1024, 8192)
CHAIN = TreeShape(draft_depth=4, top_k=1)


def conversations(model: str, context: int, num_prompts: int, max_tokens: int) -> list[list[int]]:
    """Returns prompts of about ``context`` tokens, made of questions and the target's answers."""
    from tlt_engine.server.recording import RecordingEngine, read_prompts

    tokenizer = AutoTokenizer.from_pretrained(model)
    turns_needed = num_prompts * (context // 128 + 2)
    questions = read_prompts(f"reasoning-gym:{TASKS}", tokenizer, turns_needed, HELD_OUT_SEED)
    engine = RecordingEngine(model, max_model_len=2048, max_num_seqs=64, dtype="float32")
    answers = engine.generate(
        questions, temperatures=[1.0] * turns_needed, max_tokens=max_tokens, first_seed=HELD_OUT_SEED
    )
    engine.close()
    turns = [sample.token_ids.tolist() for sample in sorted(answers, key=lambda sample: int(sample.req_id))]
    prompts = []
    for number, question in enumerate(questions[-num_prompts:]):
        prompt: list[int] = []
        for turn in turns[number:-num_prompts:num_prompts]:
            if len(prompt) + len(turn) + len(question) > context:
                break
            prompt += turn
        prompts.append(prompt + question)
    return prompts


def record(model: str, prompts: list[list[int]], max_tokens: int, temperature: float) -> list[Sample]:
    """Records the answers to conversations."""
    from tlt_engine.server.recording import RecordingEngine

    engine = RecordingEngine(model, max_model_len=8192, max_num_seqs=8, dtype="float32")
    samples = engine.generate(
        prompts, temperatures=[temperature] * len(prompts), max_tokens=max_tokens, first_seed=HELD_OUT_SEED
    )
    engine.close()
    return sorted(samples, key=lambda sample: int(sample.req_id))


def plot(result: Result, path: Path) -> None:
    """Draws acceptance length over context length, a line a window."""
    import matplotlib

    matplotlib.use("Agg")  # machines that run this have no display
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, sharey=True, figsize=(9, 4), layout="constrained")
    for series in result.series:
        temperature, label = series.name.split(", ")
        axis = axes[0 if temperature.endswith(" 0") else 1]
        axis.plot(*zip(*series.points, strict=True), marker="o", label=label)
        axis.set_title(temperature)
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_xlabel("context, tokens")
        axis.grid(alpha=0.3)
        axis.legend()
    axes[0].set_ylabel("acceptance length, chain of 4")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> None:
    """Runs the benchmark, prints its rows and, unless ``--quick``, writes its file and its plot."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_windows", description=__doc__)
    parser.add_argument("drafter", type=Path, help="directory of the drafter")
    parser.add_argument("--model", default=str(DEFAULT_MODEL))
    parser.add_argument("--num-prompts", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=192)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    contexts = CONTEXTS
    if arguments.quick:
        contexts, arguments.num_prompts, arguments.max_tokens = CONTEXTS[:2], 2, 32
    checkpoint = load_checkpoint(arguments.drafter)
    embedding = TargetWeights(Path(arguments.model)).embedding
    result = new_result(
        "windows",
        "benchmarks.bench_windows",
        {
            "model": model_name(arguments.model),
            "tasks": TASKS.split("+"),
            "num_prompts": arguments.num_prompts,
            "max_tokens": arguments.max_tokens,
            "trained_window": checkpoint.config.window,
            "num_tokens_seen": checkpoint.provenance.num_tokens_seen,
        },
    )
    lines: dict[str, list[tuple[float, float]]] = {}
    for context in tqdm(contexts, desc="contexts"):
        prompts = conversations(arguments.model, context, arguments.num_prompts, 128)
        mean_length = sum(map(len, prompts)) / len(prompts)
        for temperature in (0.0, 1.0):
            samples = record(arguments.model, prompts, arguments.max_tokens, temperature)
            for window in WINDOWS:
                config = msgspec.structs.replace(checkpoint.config, window=window)
                drafter = Replay(msgspec.structs.replace(checkpoint, config=config), embedding, CHAIN)
                length = replay(drafter.drafter, drafter.feed, samples, temperature, CHAIN.draft_depth)
                name = f"window {'full' if window > contexts[-1] else window}"
                row = {"name": name, "case": f"context {context}, temperature {temperature:g}"}
                result.rows.append(summarise([length], **row, metric="acceptance_length", unit="tokens"))
                lines.setdefault(f"temperature {temperature:g}, {name}", []).append((mean_length, length))
    result.series = [
        Series(name=name, x="context", y="acceptance_length", points=points) for name, points in lines.items()
    ]
    print_rows(result.rows)
    if not arguments.quick:
        path = result.write()
        plot(result, path.with_suffix(".png"))
        print(f"written: {path.name} and its plot")


if __name__ == "__main__":
    main()
