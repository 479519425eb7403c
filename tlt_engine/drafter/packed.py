"""The drafter's matrices laid out for a handful of rows.

A pass of few rows is bound by reading weights, and PyTorch's plain matrix product does not read them well: oneDNN's
layout does, and bfloat16 halves what there is to read.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tlt_engine.config import Precision
from tlt_engine.drafter.model import DrafterModel, Projection
from tlt_engine.drafter.precision import is_bfloat16

ROWS_HINT = 4
"""Rows that the layout is chosen for; others work as well."""


class PackedProjection(nn.Module):
    """A projection in oneDNN's layout; its input and result keep their dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self.num_bytes = (weight.numel() + (0 if bias is None else bias.numel())) * dtype.itemsize
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(dtype), ROWS_HINT)
        self._bias = None if bias is None else bias.detach().to(dtype)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        result: Tensor = torch.ops.mkldnn._linear_pointwise(
            input.to(self._dtype), self._packed, self._bias, "none", [], ""
        )
        return result.to(input.dtype)


class PackedProjections(nn.Module):
    """Several projections of one input as one: starting a product costs as much as a small one takes."""

    def __init__(self, parts: Sequence[Projection], dtype: torch.dtype) -> None:
        super().__init__()
        self._sizes = [part.out_features for part in parts]
        biases = [part.bias.detach() for part in parts if part.bias is not None]
        weight = torch.cat([part.weight.detach() for part in parts])
        self._together = PackedProjection(weight, torch.cat(biases) if biases else None, dtype)

    def forward(self, input: Tensor) -> Sequence[Tensor]:  # noqa: A002 - torch's name
        parts: Sequence[Tensor] = self._together(input).split(self._sizes, dim=-1)
        return parts


def pack(model: DrafterModel, precision: Precision) -> int:
    """Replaces the matrices of a drafter on a CPU by packed ones, for good.

    On other devices, in float64 and without oneDNN they stay.

    Args:
        model: the drafter, modified in place.
        precision: of the packed matrices.

    Returns:
        Bytes of its weights.

    Raises:
        ValueError: bfloat16 is asked for and the CPU cannot multiply it.
    """
    weight = model.fc.weight
    if weight.device.type == "cpu" and weight.dtype != torch.float64 and torch.backends.mkldnn.is_available():
        dtype = torch.bfloat16 if is_bfloat16(precision, weight.device) else torch.float32
        if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            raise ValueError(
                "speculative_config.learned.precision: this CPU cannot multiply bfloat16; take 'float32' or 'auto'"
            )
        attention, mlp = model.midlayer.self_attn, model.midlayer.mlp
        attention.fused = _take(attention, ("q_proj", "k_proj", "v_proj"), dtype)
        mlp.fused = _take(mlp, ("gate_proj", "up_proj"), dtype)
        for module, name in ((attention, "o_proj"), (mlp, "down_proj"), (model, "fc"), (model, "lm_head")):
            projection = getattr(module, name)
            setattr(module, name, PackedProjection(projection.weight, projection.bias, dtype))
    packed = sum(module.num_bytes for module in model.modules() if isinstance(module, PackedProjection))
    return packed + sum(parameter.nbytes for parameter in model.parameters())


def _take(module: nn.Module, names: Sequence[str], dtype: torch.dtype) -> PackedProjections:
    """Packs projections together and deletes them."""
    together = PackedProjections([getattr(module, name) for name in names], dtype)
    for name in names:
        delattr(module, name)
    return together
