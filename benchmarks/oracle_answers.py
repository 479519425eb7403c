"""Responses known beforehand, by prompt: what the oracle drafter of ``tlt-oracle`` proposes from."""

from __future__ import annotations

_RESPONSES: dict[tuple[int, ...], tuple[int, ...]] = {}


def remember(prompt_token_ids: list[int], response_token_ids: list[int]) -> None:
    """Stores the response that the target will give to a prompt."""
    _RESPONSES[tuple(prompt_token_ids)] = tuple(response_token_ids)


def continuation(token_ids: list[int], limit: int) -> list[int]:
    """Returns the next tokens of a known response.

    Args:
        token_ids: Prompt and output so far.
        limit: At most this many tokens are returned.

    Returns:
        Up to ``limit`` token ids; none when no stored prompt and response start the way ``token_ids`` does.
    """
    for prompt, response in _RESPONSES.items():
        num_done = len(token_ids) - len(prompt)
        if num_done < 0 or tuple(token_ids[: len(prompt)]) != prompt:
            continue
        if tuple(token_ids[len(prompt) :]) == response[:num_done]:
            return list(response[num_done : num_done + limit])
    return []
