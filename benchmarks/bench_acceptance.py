"""How far drafts are accepted on held-out text: chain, tree, look-up and both grafted, replayed step by step.

The target's responses are recorded once, with its features; a replay gives each drafter the features it would have had
and accepts what the response really contains. No clock decides anything, so the numbers repeat. Trees are grown to
their full depth, whatever ``learned.min_reach`` would save.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm
from transformers import AutoTokenizer

from benchmarks.bench_drafter import accepted_length
from benchmarks.machine import new_result
from benchmarks.measure import print_rows
from benchmarks.options import DEFAULT_MODEL, model_name
from benchmarks.result import Series, summarise
from tlt_engine.cli.warmup import STATE_FILE, WORK_FOLDER
from tlt_engine.config import PromptLookupConfig
from tlt_engine.drafter.checkpoint import Checkpoint, load_checkpoint
from tlt_engine.drafter.feature_ring import FeatureRing
from tlt_engine.drafter.initialise import TargetWeights
from tlt_engine.drafter.learned import LearnedDrafter
from tlt_engine.drafter.runtime import DrafterRuntime, TreeShape
from tlt_engine.drafter_trainer.sample import Sample
from tlt_engine.spec.drafter import DraftRequest, FinishReason
from tlt_engine.spec.prompt_lookup import PromptLookup
from tlt_engine.spec.tree import DraftTree

TASKS = "gsm_symbolic+chain_sum+basic_arithmetic+simple_equations"
HELD_OUT_SEED = 1_000_003
LEARNED_NODES, LOOKUP_NODES = 7, 4


class BothDrafters:
    """The network's tree and look-up's, united and calibrated together, as strategy ``both`` drafts."""

    def __init__(self, network: LearnedDrafter, lookup: PromptLookup) -> None:
        self._network, self._lookup = network, lookup

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftTree]:
        """Returns one tree a request."""
        return self._lookup.propose(requests, self._network.propose(requests))

    def finish(self, req_id: str, reason: FinishReason) -> None:
        """Tells both."""
        self._network.finish(req_id, reason)
        self._lookup.finish(req_id, reason)


AnyDrafter = LearnedDrafter | PromptLookup | BothDrafters


class Replay:
    """A drafter that is fed recorded features."""

    def __init__(self, checkpoint: Checkpoint, embedding: torch.Tensor, shape: TreeShape) -> None:
        config = checkpoint.config
        width = len(config.aux_layer_ids) * config.target_hidden_size
        self.ring = FeatureRing(1, config.window, width, dtype=torch.float32)
        runtime = DrafterRuntime(
            config, lambda ids: F.embedding(ids, embedding), self.ring, 1, shape, torch.float32, "float32"
        )
        runtime.use(checkpoint.build())
        self.drafter = LearnedDrafter(runtime, self.ring)

    def feed(self, sample: Sample, start: int, end: int) -> None:
        """Writes the features of positions ``start`` to ``end``."""
        self.ring.admit(sample.req_id)
        skipped, slot = self.ring.reserve(sample.req_id, start, end - start)
        positions = torch.arange(start + skipped, end)
        self.ring.write(torch.full_like(positions, slot), positions, [sample.features.float()], positions)


def replay(
    drafter: AnyDrafter,
    feed: Callable[[Sample, int, int], None] | None,
    samples: Sequence[Sample],
    temperature: float,
    num_nodes: int,
) -> float:
    """Returns the acceptance length over all responses, one after the other."""
    num_steps = num_tokens = 0
    for sample in samples:
        ids = sample.token_ids.numpy().astype(np.int32)
        fed, known = 0, sample.num_prompt_tokens + 1
        while known < len(ids):
            if feed is not None:
                feed(sample, fed, known - 1)
                fed = known - 1
            request = DraftRequest(
                sample.req_id,
                ids[:known],
                sample.num_prompt_tokens,
                max_nodes=num_nodes,
                seed=HELD_OUT_SEED + int(sample.req_id) if temperature > 0 else None,
                max_depth=len(ids),
                temperature=temperature,
            )
            (tree,) = drafter.propose([request])
            gained = min(accepted_length(tree, ids[known:].tolist()) + 1, len(ids) - known)
            known, num_steps, num_tokens = known + gained, num_steps + 1, num_tokens + gained
        drafter.finish(sample.req_id, FinishReason.COMPLETED)
    return num_tokens / num_steps


def record(model: str, num_prompts: int, max_tokens: int, temperature: float) -> list[Sample]:
    """Records responses to prompts that no training of ours has seen."""
    from tlt_engine.server.recording import RecordingEngine, read_prompts

    tokenizer = AutoTokenizer.from_pretrained(model)
    prompts = read_prompts(f"reasoning-gym:{TASKS}", tokenizer, num_prompts, HELD_OUT_SEED)
    engine = RecordingEngine(model, max_model_len=max_tokens + 1024, max_num_seqs=32, dtype="float32")
    samples = engine.generate(
        prompts, temperatures=[temperature] * num_prompts, max_tokens=max_tokens, first_seed=HELD_OUT_SEED
    )
    engine.close()
    return sorted(samples, key=lambda sample: int(sample.req_id))


def acceptance_lengths(
    checkpoint: Checkpoint, embedding: torch.Tensor, samples: Sequence[Sample], temperature: float
) -> dict[str, float]:
    """Returns the acceptance length of each way to draft."""
    chain = Replay(checkpoint, embedding, TreeShape(draft_depth=4, top_k=1))
    tree = Replay(checkpoint, embedding, TreeShape(draft_depth=4, top_k=4))
    grafted = Replay(checkpoint, embedding, TreeShape(draft_depth=4, top_k=4))
    lookup = PromptLookup(PromptLookupConfig())
    both = BothDrafters(grafted.drafter, PromptLookup(PromptLookupConfig()))
    ways: dict[
        str, tuple[LearnedDrafter | PromptLookup | BothDrafters, Callable[[Sample, int, int], None] | None, int]
    ] = {
        "ngram tree, 4 nodes": (lookup, None, LOOKUP_NODES),
        "learned chain, 4 nodes": (chain.drafter, chain.feed, 4),
        "learned tree, 7 nodes": (tree.drafter, tree.feed, LEARNED_NODES),
        "grafted tree, 11 nodes": (both, grafted.feed, LEARNED_NODES + LOOKUP_NODES),
    }
    return {
        name: replay(drafter, feed, samples, temperature, num_nodes)
        for name, (drafter, feed, num_nodes) in tqdm(ways.items(), desc=f"T={temperature:g}")
    }


def training_curve(drafter: Path) -> list[Series]:
    """Returns the held-out acceptance over tokens seen, if the warm-up was told to keep its folder."""
    file = drafter / WORK_FOLDER / STATE_FILE
    if not file.exists():
        return []
    evaluations = torch.load(file, weights_only=True)["evaluations"]
    points = [(float(num_tokens), 1.0 + sum(rates)) for num_tokens, rates in evaluations]
    return [Series(name="held-out chain, temperature 0", x="tokens_seen", y="acceptance_length", points=points)]


def main() -> None:
    """Runs the benchmark, prints its rows and, unless ``--quick``, writes its file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_acceptance", description=__doc__)
    parser.add_argument("drafter", type=Path, help="directory of the drafter")
    parser.add_argument("--model", default=str(DEFAULT_MODEL))
    parser.add_argument("--num-prompts", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.num_prompts, arguments.max_tokens = 4, 48
    checkpoint = load_checkpoint(arguments.drafter)
    embedding = TargetWeights(Path(arguments.model)).embedding
    provenance = checkpoint.provenance
    result = new_result(
        "acceptance",
        "benchmarks.bench_acceptance",
        {
            "model": model_name(arguments.model),
            "tasks": TASKS.split("+"),
            "num_prompts": arguments.num_prompts,
            "max_tokens": arguments.max_tokens,
            "drafter": {
                "recipe": provenance.recipe,
                "num_tokens_seen": provenance.num_tokens_seen,
                "draft_vocab_size": checkpoint.config.draft_vocab_size,
                "window": checkpoint.config.window,
            },
        },
    )
    for temperature in (0.0, 1.0):
        samples = record(arguments.model, arguments.num_prompts, arguments.max_tokens, temperature)
        for name, length in acceptance_lengths(checkpoint, embedding, samples, temperature).items():
            result.rows.append(
                summarise(
                    [length], name=name, case=f"temperature {temperature:g}", metric="acceptance_length", unit="tokens"
                )
            )
    result.series += training_curve(arguments.drafter)
    print_rows(result.rows)
    if not arguments.quick:
        print(f"written: {result.write().name}")


if __name__ == "__main__":
    main()
