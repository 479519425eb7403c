"""What SGLang 0.5's EAGLE-3 loader takes from a drafter's directory, written from ``shared/research/peers.md``, e2-e4.

It skips tensors whose name it does not know and falls back to default layers where it finds none, both without a word,
so whoever checks an export must ask for more than that it loads.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

FUSED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj"} | {
    "up_proj": "gate_up_proj"
}
SHARDS = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


@dataclass
class Loaded:
    parameters: dict[str, Tensor]
    missing: set[str]
    skipped: set[str]
    hot_token_id: Tensor
    layers_to_capture: list[int]
    """Counted like vLLM's: the hidden state after so many layers."""


def expected_shapes(config: dict) -> dict[str, tuple[int, ...]]:
    hidden, heads, kv_heads, head_dim = (
        config[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    )
    num_aux = len(config["eagle_config"]["eagle_aux_hidden_state_layer_ids"])
    return {
        "fc.weight": (hidden, num_aux * config["target_hidden_size"]),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        "midlayer.self_attn.qkv_proj.weight": ((heads + 2 * kv_heads) * head_dim, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, heads * head_dim),
        "midlayer.mlp.gate_up_proj.weight": (2 * config["intermediate_size"], hidden),
        "midlayer.mlp.down_proj.weight": (hidden, config["intermediate_size"]),
        "norm.weight": (hidden,),
        "lm_head.weight": (config["draft_vocab_size"], hidden),
    }


def load(directory: Path, num_target_layers: int) -> Loaded:
    config = json.loads((directory / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"], "the only architecture it registers"
    assert not config["tie_word_embeddings"], "it would take the draft embedding for the head"
    assert not any(config.get(key) for key in ("fc_norm", "norm_before_fc", "norm_output", "bias")), "not ours"
    assert "norm_before_residual" not in config or not config["norm_before_residual"], "it has no such thing"
    tensors = load_file(directory / "model.safetensors")
    shapes = expected_shapes(config)
    parameters, skipped = {}, set()
    hot_token_id = None
    for name, tensor in tensors.items():
        if name == "d2t":
            hot_token_id = tensor + torch.arange(len(tensor))
        elif name != "t2d":
            *path, last, weight = name.removeprefix("model.").split(".")
            fused = ".".join([*path, FUSED.get(last, last), weight])
            if fused not in shapes:
                skipped.add(name)
            elif last in FUSED:
                shards = [".".join([*path, shard, weight]) for shard in SHARDS[FUSED[last]]]
                if all(shard in tensors for shard in shards):
                    parameters[fused] = torch.cat([tensors[shard] for shard in shards])
            else:
                parameters[fused] = tensor
    for name, tensor in parameters.items():
        assert tensor.shape == shapes[name], f"{name}: {tuple(tensor.shape)}, expected {shapes[name]}"
    try:
        layers = [layer + 1 for layer in config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]]
    except KeyError:
        layers = [2, num_target_layers // 2, num_target_layers - 3]
    return Loaded(parameters, set(shapes) - set(parameters), skipped, hot_token_id, layers)
