"""The drafter's network: parameter names are those of vLLM's plain ``eagle3`` layout.

At position ``i`` it reads the target's features of position ``i`` and the embedding of token ``i + 1``, and predicts
token ``i + 2``. Where a feature is not known yet, because token ``i`` itself is a draft token, the network's own output
at the position before stands in for it.

Shape suffixes: T positions, A features side by side, D hidden size, N heads, K key-value heads, H head size, V draft
vocabulary.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tlt_engine.drafter.config import DrafterConfig

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention over whatever the caller keeps: (query_TNH, key_TKH, value_TKH), rotary position in, to ``[T, N, H]``."""

FusedProjections = Callable[[Tensor], Sequence[Tensor]]
"""All projections of one input at once; packing puts it in their place."""

Rotary = tuple[Tensor, Tensor]
"""Cosine and sine, ``[T, 1, H]`` each."""


class Projection(nn.Linear):
    """A matrix whose result has its input's dtype, whatever precision multiplies: the residual is never rounded."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        return super().forward(input).to(input.dtype)


class Norm(nn.RMSNorm):
    """RMSNorm in a few plain operations, which for a few rows on a CPU is less work than PyTorch's own."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()  # squares of half precision overflow
        scale = (wide.square().mean(dim=-1, keepdim=True) + (self.eps or 0.0)).rsqrt()
        return (wide * scale).to(x.dtype) * self.weight


class DrafterAttention(nn.Module):
    """Projections of the one attention layer; what is attended to is the caller's."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self._head_dim = config.head_dim
        input_size = 2 * config.hidden_size  # the embedding and the feature, side by side
        query_size = config.num_attention_heads * config.head_dim
        key_size = config.num_key_value_heads * config.head_dim
        self.q_proj = Projection(input_size, query_size, bias=config.attention_bias)
        self.k_proj = Projection(input_size, key_size, bias=config.attention_bias)
        self.v_proj = Projection(input_size, key_size, bias=config.attention_bias)
        self.o_proj = Projection(query_size, config.hidden_size, bias=False)
        if config.qk_norm:
            self.q_norm = Norm(config.head_dim, eps=config.rms_norm_eps)
            self.k_norm = Norm(config.head_dim, eps=config.rms_norm_eps)
        self._normalises_heads = config.qk_norm
        self.fused: FusedProjections | None = None

    def forward(self, input_TD: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        if self.fused is not None:
            projected = self.fused(input_TD)
        else:
            projected = self.q_proj(input_TD), self.k_proj(input_TD), self.v_proj(input_TD)
        query_TNH, key_TKH, value_TKH = (part.unflatten(-1, (-1, self._head_dim)) for part in projected)
        if self._normalises_heads:
            query_TNH, key_TKH = self.q_norm(query_TNH), self.k_norm(key_TKH)
        output_TNH = attend(_rotate(query_TNH, rotary), _rotate(key_TKH, rotary), value_TKH)
        return self.o_proj(output_TNH.flatten(-2))


class DrafterMLP(nn.Module):
    """Gated MLP, as the target's."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = Projection(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = Projection(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = Projection(config.intermediate_size, config.hidden_size, bias=False)
        self._activation = ACT2FN[config.hidden_act]
        self.fused: FusedProjections | None = None

    def forward(self, hidden_TD: Tensor) -> Tensor:
        if self.fused is not None:
            gate, up = self.fused(hidden_TD)
        else:
            gate, up = self.gate_proj(hidden_TD), self.up_proj(hidden_TD)
        return self.down_proj(self._activation(gate) * up)


class DrafterLayer(nn.Module):
    """The decoder layer; the residual runs from the feature, before its norm."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, eps=config.rms_norm_eps)
        self.hidden_norm = Norm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = DrafterAttention(config)
        self.post_attention_layernorm = Norm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = DrafterMLP(config)

    def attention_input(self, embedding_TD: Tensor, hidden_TD: Tensor) -> Tensor:
        return torch.cat([self.input_layernorm(embedding_TD), self.hidden_norm(hidden_TD)], dim=-1)

    def forward(
        self, embedding_TD: Tensor, hidden_TD: Tensor, rotary: Rotary, attend: Attend, rows: Tensor | None
    ) -> Tensor:
        attended = self.self_attn(self.attention_input(embedding_TD, hidden_TD), rotary, attend)
        hidden_TD = attended + (hidden_TD if rows is None else hidden_TD[rows])
        return hidden_TD + self.mlp(self.post_attention_layernorm(hidden_TD))


class DrafterModel(nn.Module):
    """EAGLE-3 with one layer, its own head over a part of the vocabulary, and the target's embedding.

    Source: EAGLE-3 (arXiv:2503.01840).
    """

    d2t: Tensor
    """``[draft_vocab]`` int64. What to add to a draft token's index to get the target's token id."""
    t2d: Tensor
    """``[vocab]`` bool. Tokens that can be drafted."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = Projection(len(config.aux_layer_ids) * config.target_hidden_size, config.hidden_size, bias=False)
        self.midlayer = DrafterLayer(config)
        self.norm = Norm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = Projection(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.arange(config.vocab_size) < config.draft_vocab_size)
        # In a list, so that it is no submodule: a conversion to bfloat16 would round its frequencies.
        self._rotary_embedding = [LlamaRotaryEmbedding(config.to_transformers())]

    def set_draft_vocabulary(self, token_ids: Tensor) -> None:
        """Chooses the tokens that can be drafted.

        Args:
            token_ids: ``[draft_vocab]`` int64. Distinct, ascending token ids of the target.
        """
        assert token_ids.shape == self.d2t.shape
        assert bool((token_ids.diff() > 0).all())
        self.d2t.copy_(token_ids - torch.arange(len(token_ids), device=token_ids.device))
        self.t2d.zero_()
        self.t2d[token_ids] = True

    @property
    def draft_vocabulary(self) -> Tensor:
        """``[draft_vocab]`` int64. Token ids of the target that can be drafted, ascending."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def fuse(self, features_TA: Tensor) -> Tensor:
        """Makes one hidden state of the target's features, ``[T, hidden_size]``."""
        return self.fc(features_TA)

    def forward(
        self, embedding_TD: Tensor, hidden_TD: Tensor, rotary: Rotary, attend: Attend, rows: Tensor | None = None
    ) -> Tensor:
        """Runs the layer.

        Args:
            embedding_TD: ``[T, hidden_size]``. The target's embedding of the token after each position.
            hidden_TD: ``[T, hidden_size]``. Fused features, or this function's own result where there are none.
            rotary: of the positions.
            attend: attention over the keys that each position may see.
            rows: positions whose result is wanted, if ``attend`` returns these only: of the others, one layer needs
                the keys and values alone, which depend on its input.

        Returns:
            ``[T, hidden_size]``, or as many as ``rows``. What ``logits`` and the next position take.
        """
        return self.midlayer(embedding_TD, hidden_TD, rotary, attend, rows)

    def logits(self, hidden_TD: Tensor) -> Tensor:
        """Returns the logits over the draft vocabulary, ``[T, draft_vocab]``."""
        return self.lm_head(self.norm(hidden_TD))

    def rotary(self, like: Tensor, positions_T: Tensor) -> Rotary:
        """Returns cosine and sine at positions ``[T]``, in the dtype and on the device of ``like``."""
        cos_TH, sin_TH = self._rotary_embedding[0](like, positions_T)
        return cos_TH[:, None], sin_TH[:, None]


def _rotate(heads_TNH: Tensor, rotary: Rotary) -> Tensor:
    cos, sin = rotary
    first, second = heads_TNH.chunk(2, dim=-1)
    return heads_TNH * cos + torch.cat([-second, first], dim=-1) * sin
