"""What one request may ask of speculation: ``vllm_xargs`` of the OpenAI API, ``extra_args`` of ``SamplingParams``."""

from collections.abc import Mapping
from typing import Any

MAX_DRAFT_TOKENS = "tlt_max_draft_tokens"
"""Most draft tokens of the request in a step; 0 for none ever."""

PREFIX = "tlt_"


def check_options(extra_args: Mapping[str, Any] | None) -> None:
    """Refuses what is not understood, before the request is admitted.

    Raises:
        ValueError: names the key and what it may be.
    """
    for key, value in (extra_args or {}).items():
        if not key.startswith(PREFIX):
            continue
        if key != MAX_DRAFT_TOKENS:
            raise ValueError(f"vllm_xargs: unknown key {key!r} of method 'tlt'; known is {MAX_DRAFT_TOKENS!r}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"vllm_xargs.{MAX_DRAFT_TOKENS}: expected a whole number from 0 on, got {value!r}")


def max_draft_tokens(extra_args: Mapping[str, Any] | None, default: int) -> int:
    """Returns how many draft tokens a request may have in a step."""
    return min(default, int((extra_args or {}).get(MAX_DRAFT_TOKENS, default)))
