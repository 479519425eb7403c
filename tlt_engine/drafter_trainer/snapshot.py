"""A state that no longer changes: what is rolled back to, and what another thread writes to disk."""

from typing import Any

from torch import Tensor


def snapshot(state: Any) -> Any:
    """Returns a nested state of dictionaries, lists and tensors with copies of the tensors, on the CPU."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {key: snapshot(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(snapshot(value) for value in state)
    return state
