"""The drafter's matrices laid out for a handful of rows.

A pass of few rows is bound by reading weights, and PyTorch's plain matrix product does not read them well: the head
alone took four times as long as it does packed by oneDNN, eight times with bfloat16 weights.
"""

import torch
from torch import Tensor, nn

from tlt_engine.drafter.model import DrafterModel, Projection
from tlt_engine.drafter.precision import Precision, is_bfloat16

ROWS_HINT = 4
"""Rows that the layout is chosen for; others work as well."""


class PackedProjection(nn.Module):
    """A projection in oneDNN's layout; its input and result keep their dtype."""

    def __init__(self, projection: Projection, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self.num_bytes = projection.weight.numel() * dtype.itemsize
        self._packed = torch.ops.mkldnn._reorder_linear_weight(projection.weight.detach().to(dtype), ROWS_HINT)
        self._bias = None if projection.bias is None else projection.bias.detach().to(dtype)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        result: Tensor = torch.ops.mkldnn._linear_pointwise(
            input.to(self._dtype), self._packed, self._bias, "none", [], ""
        )
        return result.to(input.dtype)


def pack(model: DrafterModel, precision: Precision) -> int:
    """Replaces the matrices of a drafter on a CPU by packed ones, for good; on other devices and in float64 they stay.

    Args:
        model: the drafter, modified in place.
        precision: of the packed matrices.

    Returns:
        Bytes of its weights.
    """
    weight = model.fc.weight
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    if weight.device.type != "cpu" or weight.dtype == torch.float64:
        return num_bytes
    dtype = torch.bfloat16 if is_bfloat16(precision, weight.device) else torch.float32
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Projection):
                packed = PackedProjection(child, dtype)
                num_bytes += packed.num_bytes - child.weight.nbytes
                setattr(module, name, packed)
    return num_bytes
