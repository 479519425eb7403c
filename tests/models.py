"""Targets of the tests: a tiny random Llama made on the spot, and the real model that ``make model`` leaves."""

from pathlib import Path

import torch

MODEL_DIR = Path(__file__).parent.parent / "models" / "smollm2-135m-instruct"
TINY_VOCAB = 512


def make_tiny_llama(folder: Path, **overrides: object) -> Path:
    """Writes a 3-layer Llama with 512 tokens whose greedy text does not fall into a loop at once."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    settings = {
        "vocab_size": TINY_VOCAB,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 1024,
        "initializer_range": 0.3,
        **overrides,
    }
    LlamaForCausalLM(LlamaConfig(**settings)).float().save_pretrained(folder)
    return folder
