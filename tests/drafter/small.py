"""Small drafters of each family with random weights, their target, and random text for them."""

from types import SimpleNamespace

import torch
from torch import Tensor

from tlt_engine.drafter.checkpoint import Provenance, TargetIdentity
from tlt_engine.drafter.config import DrafterConfig
from tlt_engine.drafter.model import DrafterModel
from tlt_engine.drafter_trainer.sample import Sample

HIDDEN, VOCAB, DRAFT_VOCAB, NUM_AUX = 24, 40, 20, 2

FAMILIES = {
    "llama": {},
    "qwen2": {"attention_bias": True},
    "qwen3": {"qk_norm": True, "head_dim": 12},  # head_dim is not hidden_size / num_attention_heads there
}


def small_drafter(family: str = "llama", *, window: int = 64, seed: int = 0) -> DrafterModel:
    """Returns a drafter in float64, so that rounding hides nothing."""
    settings = {
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "target_hidden_size": HIDDEN,
        "aux_layer_ids": (1, 3),
        "window": window,
        "hidden_size": HIDDEN,
        "intermediate_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "qk_norm": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
        "max_position_embeddings": 512,
    }
    generator = torch.Generator().manual_seed(seed)
    model = DrafterModel(DrafterConfig(**settings | FAMILIES[family])).double()
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = 1 + 0.3 * noise if parameter.ndim == 1 else 0.3 * noise
    model.set_draft_vocabulary(torch.arange(0, VOCAB, 2))
    return model.requires_grad_(False)


def random_embedding(seed: int = 1) -> Tensor:
    """Returns ``[VOCAB, HIDDEN]`` float64."""
    return torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_sample(num_tokens: int, seed: int = 2, num_prompt_tokens: int = 0, first_position: int = 0) -> Sample:
    """Returns random text of the draft vocabulary with random features."""
    generator = torch.Generator().manual_seed(seed)
    return Sample(
        req_id=f"r{seed}",
        token_ids=2 * torch.randint(0, DRAFT_VOCAB, (num_tokens,), generator=generator),
        features=torch.randn(num_tokens, NUM_AUX * HIDDEN, generator=generator, dtype=torch.float64),
        final_hidden=torch.randn(num_tokens, HIDDEN, generator=generator, dtype=torch.float64),
        first_position=first_position,
        num_prompt_tokens=num_prompt_tokens,
    )


class Tokenizer:
    """Names token ids."""

    def __init__(self, prefix="t"):
        self.prefix = prefix

    def convert_ids_to_tokens(self, ids):
        return [f"{self.prefix}{token_id}" if token_id > 20 else f"t{token_id}" for token_id in ids]


TARGET = SimpleNamespace(
    model_type="llama", num_hidden_layers=4, hidden_size=HIDDEN, vocab_size=VOCAB, _name_or_path="target"
)


def provenance(model):
    return Provenance(
        target=TargetIdentity.of("/models/target", TARGET, Tokenizer(), model.draft_vocabulary),
        recipe="eagle3",
        num_tokens_seen=1000,
        num_steps=3,
        held_out="a test",
        held_out_acceptance_rates=(0.5, 0.25),
        engine_version="0",
    )
