"""What ``tlt-engine doctor`` says of one target and its drafter, the drafter's worth measured and not believed."""

import math
from collections.abc import Callable
from pathlib import Path

import torch.nn.functional as F
from transformers import AutoConfig, AutoTokenizer

from tlt_engine.config import LearnedConfig
from tlt_engine.drafter.checkpoint import Checkpoint, check_fits_target, load_checkpoint
from tlt_engine.drafter.config import DrafterConfig
from tlt_engine.drafter.initialise import TargetWeights
from tlt_engine.drafter_trainer.acceptance import Accepted

MIB = 1 << 20
PROMPTS = (
    "A baker sells 12 loaves in the morning and twice as many in the afternoon. How many loaves is that in all?",
    "Explain in a few sentences why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "List five things to pack for a week by the sea.",
)
MAX_TOKENS = 96
COLLAPSED = 0.5
"""Share of the extra tokens a step that provenance promises, below which the drafter is thought to be a wrong one."""

DEVIATIONS = 3.0
"""Few answers say little of a drafter that promises little; chance must not explain what is missing."""


def checks(model: str, drafter: Path | None) -> list[tuple[str, Callable[[], str]]]:
    """Returns the checks of a target, in order; each raises or says what it found."""
    found: list[tuple[str, Callable[[], str]]] = [
        ("target", lambda: _target(model)),
        ("learned drafter", lambda: _learned(model)),
    ]
    if drafter is not None:
        found += [
            ("drafter", lambda: _drafter(model, drafter)),
            ("drafter memory", lambda: _memory(load_checkpoint(drafter))),
            ("acceptance", lambda: _acceptance(model, drafter)),
        ]
    return found


def _target(model: str) -> str:
    config = AutoConfig.from_pretrained(model)
    return f"{config.model_type}, {config.num_hidden_layers} layers, vocabulary {config.vocab_size}"


def _learned(model: str) -> str:
    config = DrafterConfig.from_target(AutoConfig.from_pretrained(model))
    return f"possible, features after layers {', '.join(map(str, config.aux_layer_ids))}"


def _drafter(model: str, directory: Path) -> str:
    checkpoint = load_checkpoint(directory)
    tokenizer = AutoTokenizer.from_pretrained(model)
    check_fits_target(checkpoint, AutoConfig.from_pretrained(model), tokenizer, str(directory))
    return f"whole, and made for {checkpoint.provenance.target.name}"


def _memory(checkpoint: Checkpoint) -> str:
    config, settings = checkpoint.config, LearnedConfig()
    element = checkpoint.tensors["fc.weight"].element_size()
    features = config.window * len(config.aux_layer_ids) * config.target_hidden_size * element
    scratch = settings.top_k * (settings.draft_depth - 1)
    keys = 2 * (config.window + scratch) * config.num_key_value_heads * config.head_dim * element
    return f"{(features + keys) / MIB:.1f} MiB a request, of at most {settings.capture_threshold} requests"


def _acceptance(model: str, directory: Path) -> str:
    """Serves a few prompts with the target and compares with what provenance says."""
    from tlt_engine.server.recording import RecordingEngine, chat_prompt

    checkpoint = load_checkpoint(directory)
    tokenizer = AutoTokenizer.from_pretrained(model)
    prompts = [chat_prompt(tokenizer, text) for text in PROMPTS]
    engine = RecordingEngine(model, max_model_len=1024, max_num_seqs=len(prompts), dtype="auto")
    samples = engine.generate(prompts, temperatures=[0.0] * len(prompts), max_tokens=MAX_TOKENS, first_seed=0)
    engine.close()
    promised = checkpoint.provenance.held_out_acceptance_rates
    embedding = TargetWeights(Path(model)).embedding
    drafter = checkpoint.build().float()
    depth = max(1, len(promised))
    counts = (Accepted.count(drafter, sample, lambda ids: F.embedding(ids, embedding), depth) for sample in samples)
    accepted = Accepted.total(counts, depth)
    rates = accepted.rates
    text = f"length {1 + sum(rates):.2f} on {len(prompts)} prompts of our own, {1 + sum(promised):.2f} on held-out ones"
    if sum(rates) < COLLAPSED * sum(promised) and _is_no_chance(rates[0], promised[0], accepted.num_positions):
        raise RuntimeError(f"{text}; these weights or this target are not what they were, train a drafter anew")
    return text


def _is_no_chance(rate: float, promised: float, num_positions: int) -> bool:
    return promised - rate > DEVIATIONS * math.sqrt(promised * (1 - promised) / max(1, num_positions))
