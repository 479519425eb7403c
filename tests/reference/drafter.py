"""The drafter position by position, from the formulas: no cache, no mask, no batching, rotation by complex numbers."""

import torch
from torch import Tensor

from tlt_engine.drafter.model import DrafterModel


def reference_logits(
    model: DrafterModel, embedding: Tensor, token_ids: list[int], features: Tensor, draft_token_ids: list[int]
) -> Tensor:
    """Returns the logits of the token after ``draft_token_ids``, which follow ``token_ids``.

    Args:
        model: the drafter.
        embedding: ``[vocab, hidden]``. The target's.
        token_ids: ``n + 1`` tokens.
        features: ``[n, width]``. Of the first ``n`` of them.
        draft_token_ids: a path of draft tokens.
    """
    inputs = [
        (embedding[token_ids[position + 1]], model.fc.weight @ features[position]) for position in range(len(features))
    ]
    hidden = _output(model, inputs)
    for token_id in draft_token_ids:
        inputs.append((embedding[token_id], hidden))
        hidden = _output(model, inputs)
    return model.lm_head.weight @ _norm(hidden, model.norm)


def _output(model: DrafterModel, inputs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The layer's output at the last input; the position of an input is its place."""
    config, layer = model.config, model.midlayer
    attention = layer.self_attn
    last = len(inputs) - 1
    keys, values = [], []
    for position in range(max(0, last + 1 - config.window), last + 1):
        normed = _normed(layer, inputs[position])
        key = _project(attention.k_proj, normed).view(config.num_key_value_heads, config.head_dim)
        if config.qk_norm:
            key = torch.stack([_norm(head, attention.k_norm) for head in key])
        keys.append(torch.stack([_turn(head, position, config.rope_parameters["rope_theta"]) for head in key]))
        values.append(_project(attention.v_proj, normed).view(config.num_key_value_heads, config.head_dim))
    query = _project(attention.q_proj, _normed(layer, inputs[last])).view(config.num_attention_heads, config.head_dim)
    outputs = []
    for head in range(config.num_attention_heads):
        kv_head = head * config.num_key_value_heads // config.num_attention_heads
        asked = _norm(query[head], attention.q_norm) if config.qk_norm else query[head]
        asked = _turn(asked, last, config.rope_parameters["rope_theta"])
        scores = torch.stack([asked @ key[kv_head] for key in keys]) / config.head_dim**0.5
        weights = scores.exp() / scores.exp().sum()
        outputs.append(sum(weight * value[kv_head] for weight, value in zip(weights, values, strict=True)))
    hidden = inputs[last][1] + attention.o_proj.weight @ torch.cat(outputs)
    normed = _norm(hidden, layer.post_attention_layernorm)
    gate, up = layer.mlp.gate_proj.weight @ normed, layer.mlp.up_proj.weight @ normed
    return hidden + layer.mlp.down_proj.weight @ (gate / (1 + (-gate).exp()) * up)


def _normed(layer: torch.nn.Module, pair: tuple[Tensor, Tensor]) -> Tensor:
    return torch.cat([_norm(pair[0], layer.input_layernorm), _norm(pair[1], layer.hidden_norm)])


def _norm(vector: Tensor, norm: torch.nn.RMSNorm) -> Tensor:
    return vector / (vector.square().mean() + norm.eps).sqrt() * norm.weight


def _project(linear: torch.nn.Linear, vector: Tensor) -> Tensor:
    return linear.weight @ vector + (linear.bias if linear.bias is not None else 0)


def _turn(head: Tensor, position: int, theta: float) -> Tensor:
    half = len(head) // 2
    angles = position * theta ** (-torch.arange(half, dtype=head.dtype) / half)
    turned = torch.complex(head[:half], head[half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag])
