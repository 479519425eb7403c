"""First weights of a drafter, taken from its target; ``benchmarks/bench_training.py`` compares the ways."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from tlt_engine.drafter.model import DrafterModel

INITIALISATIONS = ("random", "head", "last_layer")

INITIAL_DEVIATION = 0.02
"""Of weights that the target says nothing about, as in the targets' own ``initializer_range``."""


class TargetWeights:
    """Reads single tensors of a target's safetensors files by their transformers names."""

    def __init__(self, model_dir: Path) -> None:
        """Opens a model directory.

        Raises:
            ValueError: it holds no safetensors files.
        """
        index = model_dir / "model.safetensors.index.json"
        if index.is_file():
            files = json.loads(index.read_text())["weight_map"]
            self._file_of = {name: model_dir / file for name, file in files.items()}
        else:
            self._file_of = {}
            for file in sorted(model_dir.glob("*.safetensors")):
                with safe_open(file, framework="pt") as tensors:
                    self._file_of.update(dict.fromkeys(tensors.keys(), file))
        if not self._file_of:
            raise ValueError(f"{model_dir}: no safetensors files to take a drafter's first weights from")

    def names(self) -> list[str]:
        """Returns the names of all tensors."""
        return list(self._file_of)

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def __getitem__(self, name: str) -> Tensor:
        with safe_open(self._file_of[name], framework="pt") as tensors:
            return tensors.get_tensor(name).float()

    @property
    def embedding(self) -> Tensor:
        """``[vocab, hidden]`` float32."""
        return self["model.embed_tokens.weight"]

    @property
    def head(self) -> Tensor:
        """``[vocab, hidden]`` float32; the embedding where the two are tied."""
        return self["lm_head.weight"] if "lm_head.weight" in self else self.embedding


@torch.no_grad()
def initialise(
    model: DrafterModel, target: TargetWeights | None, num_target_layers: int, method: str, seed: int = 0
) -> None:
    """Fills a drafter's weights; its draft vocabulary must be chosen before.

    Args:
        model: the drafter, modified in place.
        target: weights of the target; None for ``random``.
        num_target_layers: decoder layers of the target.
        method: ``random``; ``head``, which takes the head's rows and the final norm from the target; or
            ``last_layer``, which also takes the last decoder layer and lets the highest feature through the fusion.
        seed: of the random part.

    Raises:
        ValueError: an unknown method.
    """
    if method not in INITIALISATIONS:
        raise ValueError(f"initialisation: expected one of {list(INITIALISATIONS)}, got {method!r}")
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.normal_(0.0, INITIAL_DEVIATION, generator=generator)
    if method == "random" or target is None:
        return
    model.lm_head.weight.copy_(target.head[model.draft_vocabulary])
    model.norm.weight.copy_(target["model.norm.weight"])
    if method == "last_layer":
        _copy_last_layer(model, target, f"model.layers.{num_target_layers - 1}.")


def _copy_last_layer(model: DrafterModel, target: TargetWeights, prefix: str) -> None:
    """The layer is told the embedding, too: that half of its input starts at random and small."""
    layer, hidden_size = model.midlayer, model.config.hidden_size
    copies: Mapping[str, Tensor] = {
        "self_attn.o_proj.weight": layer.self_attn.o_proj.weight,
        "mlp.gate_proj.weight": layer.mlp.gate_proj.weight,
        "mlp.up_proj.weight": layer.mlp.up_proj.weight,
        "mlp.down_proj.weight": layer.mlp.down_proj.weight,
        "post_attention_layernorm.weight": layer.post_attention_layernorm.weight,
        "input_layernorm.weight": layer.hidden_norm.weight,
    }
    for name, weight in copies.items():
        weight.copy_(target[prefix + name])
    for name in ("q_proj", "k_proj", "v_proj"):
        projection = getattr(layer.self_attn, name)
        projection.weight[:, hidden_size:].copy_(target[f"{prefix}self_attn.{name}.weight"])
        if projection.bias is not None:
            projection.bias.copy_(target[f"{prefix}self_attn.{name}.bias"])
    if model.config.qk_norm:
        layer.self_attn.q_norm.weight.copy_(target[prefix + "self_attn.q_norm.weight"])
        layer.self_attn.k_norm.weight.copy_(target[prefix + "self_attn.k_norm.weight"])
    if model.config.target_hidden_size == hidden_size:
        model.fc.weight[:, -hidden_size:] += torch.eye(hidden_size)
