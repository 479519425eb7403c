"""What a warm-up learns from: the target's answers to the user's prompts, recorded round by round."""

import argparse
from dataclasses import replace

import torch
from tqdm import tqdm

from tlt_engine.drafter_trainer.sample import Sample
from tlt_engine.drafter_trainer.sample_store import SampleStore

ROUND_PROMPTS = 64
MAX_PROMPT_TOKENS = 1024


def record_responses(options: argparse.Namespace, tokenizer: object, store: SampleStore) -> list[Sample]:
    """Generates rounds of responses until there are enough tokens of the target's own.

    Every other prompt is answered greedily, the others at temperature 1.

    Args:
        options: of ``warmup``.
        tokenizer: the target's.
        store: rounds that are there already; the others are added.

    Returns:
        All samples; a sample's id is its prompt's number.

    Raises:
        ValueError: the prompts cannot be read, or one is too long.
    """
    from tlt_engine.server.recording import RecordingEngine, read_prompts

    samples = list(store)
    num_tokens = sum(map(_num_written, samples))
    engine: RecordingEngine | None = None
    with tqdm(desc="generate", unit="tokens", total=options.tokens, initial=num_tokens) as bar:
        while num_tokens < options.tokens:
            first = store.num_rounds * ROUND_PROMPTS
            prompts = read_prompts(options.data, tokenizer, first + ROUND_PROMPTS, options.seed)[first:]
            for place, prompt in enumerate(prompts, start=first):
                if len(prompt) > MAX_PROMPT_TOKENS:
                    raise ValueError(
                        f"--data {options.data}: prompt {place + 1} has {len(prompt)} tokens, at most "
                        f"{MAX_PROMPT_TOKENS} can be used; leave it out"
                    )
            engine = engine or RecordingEngine(
                options.model,
                max_model_len=options.max_tokens + MAX_PROMPT_TOKENS,
                max_num_seqs=32,
                dtype=options.dtype,
                seed=options.seed,
            )
            temperatures = [float((first + place) % 2) for place in range(len(prompts))]
            recorded = engine.generate(
                prompts, temperatures=temperatures, max_tokens=options.max_tokens, first_seed=options.seed + first
            )
            recorded = [replace(sample, req_id=str(first + int(sample.req_id))) for sample in recorded]
            store.add(recorded, torch.bfloat16)
            num_tokens += sum(map(_num_written, recorded))
            bar.update(sum(map(_num_written, recorded)))
    if engine is not None:
        engine.close()
    return list(store)


def _num_written(sample: Sample) -> int:
    return len(sample) - sample.num_prompt_tokens
