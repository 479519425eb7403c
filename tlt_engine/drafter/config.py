"""What a drafter is made of; derived from its target, stored with its weights."""

from typing import Annotated, Any

import msgspec
from transformers import LlamaConfig, PretrainedConfig

Positive = Annotated[int, msgspec.Meta(ge=1)]

DEFAULT_WINDOW = 1024
DEFAULT_DRAFT_VOCAB_SIZE = 8192

TARGET_FAMILIES = ("llama", "qwen2", "qwen3")
"""``model_type`` of the targets whose decoder layer the drafter's layer can be made after."""


class DrafterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shape of the network and what it shares with its target."""

    vocab_size: Positive
    """Of the target; token ids in and out are the target's."""
    draft_vocab_size: Positive
    """Tokens that can be drafted."""
    target_hidden_size: Positive
    aux_layer_ids: tuple[int, ...]
    """Target layers whose outputs are the features, in vLLM's convention: ``k`` is the hidden state after ``k`` layers,
    0 the embeddings."""
    window: Positive
    """Positions that a position attends to, its own included."""
    hidden_size: Positive
    intermediate_size: Positive
    num_attention_heads: Positive
    num_key_value_heads: Positive
    head_dim: Positive
    rms_norm_eps: float
    attention_bias: bool
    """Whether q, k and v have biases (Qwen2)."""
    qk_norm: bool
    """Whether queries and keys are normalised a head (Qwen3)."""
    rope_parameters: dict[str, Any]
    """The target's own, as transformers writes them."""
    max_position_embeddings: Positive
    hidden_act: str = "silu"

    @classmethod
    def from_target(
        cls,
        target: PretrainedConfig,
        *,
        draft_vocab_size: int = DEFAULT_DRAFT_VOCAB_SIZE,
        window: int = DEFAULT_WINDOW,
        aux_layer_ids: tuple[int, ...] | None = None,
    ) -> "DrafterConfig":
        """Derives the drafter of a target: one layer of the target's own shape.

        Args:
            target: configuration of the target's language model.
            draft_vocab_size: tokens that can be drafted; the target's vocabulary if that is smaller.
            window: positions that a position attends to.
            aux_layer_ids: features; None for the usual low, middle and high layer.

        Raises:
            ValueError: the target is of another family, or a layer does not exist.
        """
        if target.model_type not in TARGET_FAMILIES:
            raise ValueError(
                f"no drafter for targets of type {target.model_type!r}; types that have one: {list(TARGET_FAMILIES)}. "
                "Drafting without weights (drafter 'ngram') works for every target"
            )
        num_layers = target.num_hidden_layers
        layer_ids = aux_layer_ids or default_aux_layer_ids(num_layers)
        if not layer_ids or any(not 0 <= layer_id <= num_layers for layer_id in layer_ids):
            raise ValueError(f"aux_layer_ids={layer_ids}: expected layers 0 to {num_layers} of the target")
        if list(layer_ids) != sorted(set(layer_ids)):
            raise ValueError(
                f"aux_layer_ids={layer_ids}: expected ascending layers, vLLM hands them over in that order"
            )
        return cls(
            vocab_size=target.vocab_size,
            draft_vocab_size=min(draft_vocab_size, target.vocab_size),
            target_hidden_size=target.hidden_size,
            aux_layer_ids=layer_ids,
            window=window,
            hidden_size=target.hidden_size,
            intermediate_size=target.intermediate_size,
            num_attention_heads=target.num_attention_heads,
            num_key_value_heads=target.num_key_value_heads,
            head_dim=getattr(target, "head_dim", None) or target.hidden_size // target.num_attention_heads,
            rms_norm_eps=float(target.rms_norm_eps),
            attention_bias=target.model_type == "qwen2" or bool(getattr(target, "attention_bias", False)),
            qk_norm=target.model_type == "qwen3",
            rope_parameters=dict(target.rope_parameters),
            max_position_embeddings=target.max_position_embeddings,
            hidden_act=target.hidden_act,
        )

    def to_transformers(self) -> LlamaConfig:
        """Returns what of this a transformers module needs; its rotary embedding knows every scaling."""
        return LlamaConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=1,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            hidden_act=self.hidden_act,
            max_position_embeddings=self.max_position_embeddings,
            rms_norm_eps=self.rms_norm_eps,
            rope_parameters=dict(self.rope_parameters),
            attention_bias=self.attention_bias,
            tie_word_embeddings=False,
        )


def default_aux_layer_ids(num_layers: int) -> tuple[int, ...]:
    """Returns a low, a middle and a high layer of the target, ascending; fewer if it is too shallow for three.

    Source: EAGLE-3 (arXiv:2503.01840); vLLM's default.
    """
    layer_ids = {2, num_layers // 2, num_layers - 3}
    return tuple(sorted(layer_id for layer_id in layer_ids if 0 < layer_id <= num_layers)) or (num_layers,)
