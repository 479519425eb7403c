"""What a drafter's matrices are multiplied in."""

from contextlib import AbstractContextManager, nullcontext

import torch

from tlt_engine.config import Precision


def is_bfloat16(precision: Precision, device: torch.device) -> bool:
    """Decides whether matrices are multiplied in bfloat16.

    Args:
        precision: what was asked for.
        device: where the drafter runs.
    """
    if precision != "auto":
        return precision == "bfloat16"
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    capabilities = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def multiply_in(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Returns the context in which a loss is computed.

    Where the machine multiplies bfloat16 natively, a step takes less time and the drafter learns the same from it.
    """
    return torch.autocast(device.type, torch.bfloat16) if is_bfloat16(precision, device) else nullcontext()
