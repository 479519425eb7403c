"""What a user may set; everything else of ours is derived. Unknown keys and values out of range are refused."""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

MIB = 1 << 20

BUILT_IN_DRAFTERS = ("auto", "ngram", "none")

Precision = Literal["auto", "float32", "bfloat16"]
"""What matrices are multiplied in; ``auto`` is bfloat16 where the machine multiplies it natively, else float32."""

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


class LearnedConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The learned drafter."""

    draft_depth: Annotated[int, msgspec.Meta(ge=1, le=32)] = 4
    """Passes of the drafter in a step, the depth of its trees."""
    top_k: Annotated[int, msgspec.Meta(ge=1, le=32)] = 4
    """Children kept of a node, and nodes expanded a level."""
    min_reach: Probability = 0.2
    """On a CPU, another pass is made only if the drafter gives some path at least this probability."""
    capture_threshold: Positive = 32
    """With more running requests than these, no request's features are newly kept; also the most that are."""
    precision: Precision = "auto"
    """What the drafter's matrices are multiplied in on a CPU; ``auto`` is bfloat16 where the machine has it. No output
    depends on it."""


class TrainConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The background trainer, which lets a drafter follow its target while that is served."""

    enabled: bool | None = None
    """Whether there is one; None where it has been tried, which is on CPU. It needs drafter ``auto`` or a directory."""
    mode: Literal["auto", "on", "off"] = "auto"
    """When it trains: while few requests run or none do, always, or not until it is told to."""
    max_running: Positive | None = None
    """With more running requests than these it waits; None for an eighth of ``max_num_seqs``."""
    max_slowdown: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.05
    """Mean slow-down of decode steps that is borne while it trains."""
    buffer_bytes: Annotated[int, msgspec.Meta(ge=MIB)] = 1024 * MIB
    """Cap on the samples it learns from."""
    learning_rate: Annotated[float, msgspec.Meta(gt=0.0)] = 2.5e-3
    checkpoint_dir: str | None = None
    """Where the training is kept, to go on with at the next start; it is also the directory of a trained drafter."""
    seed: int = 0


class StrategyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A strategy as a user writes it; what is left out is the most that the engine is set up for."""

    drafter: Literal["none", "ngram", "learned", "both", "own"]
    draft_depth: Positive | None = None
    top_k: Positive | None = None
    verify_width: Positive | None = None


class AdaptiveConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the strategy of each step is chosen."""

    policy: Literal["beg", "thompson", "fixed", "table"] = "beg"
    """``beg`` and ``thompson`` learn from measured speed; ``fixed`` always does the same, ``table`` goes by batch size,
    and neither leaves out rows that do not pay."""
    strategies: tuple[StrategyConfig, ...] | None = None
    """What there is to choose from; None for a set that fits the drafter. ``fixed`` and ``table`` take one."""
    table: tuple[tuple[int, int, int], ...] | None = None
    """For ``table``: first and last batch size and the draft tokens of a request between them."""
    max_exploration: Annotated[float, msgspec.Meta(ge=0.0, le=0.5)] = 0.02
    """Largest share of time that trying other strategies may lose."""
    seed: int = 0
    decision_log: str | None = None
    """File for what was decided in each step, as lines of JSON; ``tlt-engine inspect`` reads it."""


class TltConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of ``--speculative-config`` that belong to method ``tlt``."""

    num_speculative_tokens: Annotated[int, msgspec.Meta(ge=1, le=255)] = 15
    """Most draft tokens of one request in one step, vLLM's own key: ``verify_width - 1``."""
    drafter: str = "auto"
    """``auto`` (model-free, and a drafter that is trained while serving), ``ngram`` (model-free), ``none`` (never
    draft), the directory of a trained drafter, or ``module:Class`` of one of your own."""
    drafter_args: dict[str, Any] = {}
    """Keyword arguments of a drafter of your own."""
    max_step_rows: Positive | None = None
    """Most rows the target verifies in one step, all requests together; None lets the measured step cost decide."""
    prompt_lookup: PromptLookupConfig = PromptLookupConfig()
    """Settings of the model-free drafter."""
    learned: LearnedConfig = LearnedConfig()
    """Settings of a trained drafter."""
    train: TrainConfig = TrainConfig()
    """Settings of the background trainer."""
    adaptive: AdaptiveConfig = AdaptiveConfig()
    """Settings of the choice of a strategy."""
    admin_routes: bool = False
    """Whether the server takes orders under ``/tlt`` (``POST /tlt/train``); they ask for ``--api-key``."""
    record_samples: bool = False
    """Whether everything a drafter learns from is kept of every request until it is fetched; ``tlt-engine warmup``
    does."""
    max_recorded_bytes: Annotated[int, msgspec.Meta(ge=MIB)] = 4096 * MIB
    """Cap on what is recorded; requests beyond it are not."""

    @classmethod
    def from_user(cls, options: dict[str, Any]) -> "TltConfig":
        """Checks what the user wrote in ``--speculative-config``.

        Args:
            options: the user's keys without ``method`` and ``model``.

        Raises:
            ValueError: an unknown key, a value of the wrong type or out of range; the text names the key.
        """
        _refuse_unknown(options, cls, "speculative_config")
        for key, struct in NESTED.items():
            if isinstance(nested := options.get(key), dict):
                _refuse_unknown(nested, struct, f"speculative_config.{key}")
        try:
            config = msgspec.convert(options, cls)
        except msgspec.ValidationError as error:
            raise ValueError(f"speculative_config: {error}") from None
        if config.drafter not in BUILT_IN_DRAFTERS and not config.is_learned and ":" not in config.drafter:
            raise ValueError(
                "speculative_config.drafter: expected 'auto', 'ngram', 'none', the directory of a trained drafter or "
                f"'module:Class', got {config.drafter!r}"
            )
        if config.train != TrainConfig() and config.drafter != "auto" and not config.is_learned:
            raise ValueError(
                f"speculative_config.train: drafter {config.drafter!r} has nothing to train; take 'auto' or the "
                "directory of a trained drafter"
            )
        if config.drafter_args and (config.is_learned or ":" not in config.drafter):
            raise ValueError(f"speculative_config.drafter_args: drafter {config.drafter!r} takes no arguments")
        return config

    @property
    def is_learned(self) -> bool:
        """Whether ``drafter`` is a directory; a built-in drafter's name is never one."""
        return self.drafter not in BUILT_IN_DRAFTERS and Path(self.drafter).is_dir()

    def to_builtins(self) -> dict[str, Any]:
        """Returns plain data that ``from_user`` reads back; this is what travels in vLLM's ``additional_config``."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


NESTED: dict[str, type[msgspec.Struct]] = {
    "prompt_lookup": PromptLookupConfig,
    "learned": LearnedConfig,
    "train": TrainConfig,
    "adaptive": AdaptiveConfig,
}


def _refuse_unknown(options: dict[str, Any], struct: type[msgspec.Struct], where: str) -> None:
    known = struct.__struct_fields__
    for key in options:
        if key not in known:
            raise ValueError(f"{where}: unknown key {key!r} for method 'tlt'; known keys: {sorted(known)}")
