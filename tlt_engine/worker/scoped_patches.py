"""Names that stock code looks up in its own modules, swapped around one ``super()`` call; each says until when."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from types import ModuleType
from typing import Any


@contextmanager
def replaced(module: ModuleType, name: str, value: Any) -> Iterator[None]:
    """Swaps ``module.name`` for the time of the block."""
    stock = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, stock)


@contextmanager
def all_logits_processors(runner_module: ModuleType) -> Iterator[None]:
    """Lets the runner build every logits processor.

    Cause: ``build_logitsprocs`` drops min_p and logit_bias and refuses custom processors when speculation is
    configured, because stock's rejection sampler cannot apply them per row; ours can.
    Until: vLLM builds them with speculation (its refusal is "not yet supported").
    """
    stock = runner_module.build_logitsprocs

    def build_logitsprocs(vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        without_speculation = copy(vllm_config)
        without_speculation.speculative_config = None
        return stock(without_speculation, *args, **kwargs)

    with replaced(runner_module, "build_logitsprocs", build_logitsprocs):
        yield
