"""What a user may set; everything else of ours is derived. Unknown keys and values out of range are refused."""

from typing import Annotated, Any

import msgspec

MIB = 1 << 20

Positive = Annotated[int, msgspec.Meta(ge=1)]
Probability = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class PromptLookupConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model-free drafter: suffix trees over the request, over its prompt's responses and over recent ones."""

    max_match_len: Annotated[int, msgspec.Meta(ge=2, le=256)] = 24
    """Longest context that is matched, in tokens; also the depth of the suffix trees."""
    min_prob: Probability = 0.02
    """Draft tokens with a smaller estimated probability of being accepted are not drafted."""
    max_cached_responses: Positive = 10_000
    """Responses of finished requests that are kept to draft from; the oldest go first."""
    max_cached_bytes: Annotated[int, msgspec.Meta(ge=MIB)] = 256 * MIB
    """Cap on the estimated memory of all suffix trees."""


class TltConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of ``--speculative-config`` that belong to method ``tlt``."""

    num_speculative_tokens: Annotated[int, msgspec.Meta(ge=1, le=255)] = 15
    """Most draft tokens of one request in one step, vLLM's own key: ``verify_width - 1``."""
    drafter: str = "ngram"
    """``ngram`` (model-free), ``none`` (never draft), or ``module:Class`` of your own drafter."""
    drafter_args: dict[str, Any] = {}
    """Keyword arguments of a drafter of your own."""
    max_step_rows: Positive | None = None
    """Most rows the target verifies in one step, all requests together; None lets the measured step cost decide."""
    prompt_lookup: PromptLookupConfig = PromptLookupConfig()
    """Settings of the model-free drafter."""

    @classmethod
    def from_user(cls, options: dict[str, Any]) -> "TltConfig":
        """Checks what the user wrote in ``--speculative-config``.

        Args:
            options: the user's keys without ``method`` and ``model``.

        Raises:
            ValueError: an unknown key, a value of the wrong type or out of range; the text names the key.
        """
        _refuse_unknown(options, cls, "speculative_config")
        nested = options.get("prompt_lookup")
        if isinstance(nested, dict):
            _refuse_unknown(nested, PromptLookupConfig, "speculative_config.prompt_lookup")
        try:
            config = msgspec.convert(options, cls)
        except msgspec.ValidationError as error:
            raise ValueError(f"speculative_config: {error}") from None
        if config.drafter not in ("ngram", "none") and ":" not in config.drafter:
            raise ValueError(
                f"speculative_config.drafter: expected 'ngram', 'none' or 'module:Class', got {config.drafter!r}"
            )
        if config.drafter_args and ":" not in config.drafter:
            raise ValueError(f"speculative_config.drafter_args: drafter {config.drafter!r} takes no arguments")
        return config

    def to_builtins(self) -> dict[str, Any]:
        """Returns plain data that ``from_user`` reads back; this is what travels in vLLM's ``additional_config``."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def _refuse_unknown(options: dict[str, Any], struct: type[msgspec.Struct], where: str) -> None:
    known = struct.__struct_fields__
    for key in options:
        if key not in known:
            raise ValueError(f"{where}: unknown key {key!r} for method 'tlt'; known keys: {sorted(known)}")
