"""What is asked of one engine process and what comes back: plain records that travel as JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

LIVE_BATCH_RANGES: tuple[tuple[str, int, float], ...] = (("1", 1, 1), ("2-4", 2, 4), ("5-8", 5, 8), (">8", 9, math.inf))
"""Label, smallest and largest number of live requests, both inclusive."""


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """One response to generate."""

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all tokens."""
    min_p: float = 0.0
    seed: int | None = None
    ignore_eos: bool = False
    """Whether the response has exactly ``max_tokens`` tokens."""
    answer_token_ids: list[int] | None = None
    """The response, where it is known: only the oracle drafter reads it."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One engine over one list of requests."""

    engine: str
    settings: dict[str, Any]
    """Fields of ``EngineSettings``."""
    requests: list[JobRequest]
    concurrency: int
    """Requests kept live at a time; the next one enters when one ends."""
    warmup: list[JobRequest] = field(default_factory=list)
    """Generated first and not measured. Their prompts differ from the measured ones: a cache must not learn these."""

    def to_json(self) -> dict[str, Any]:
        """Returns the record as JSON-ready values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Job:
        """Builds the record from what ``to_json`` returned."""
        requests = [JobRequest(**request) for request in data["requests"]]
        warmup = [JobRequest(**request) for request in data["warmup"]]
        return cls(**{**data, "requests": requests, "warmup": warmup})


@dataclass(frozen=True, kw_only=True)
class Step:
    """One engine step."""

    end_s: float
    """Seconds since the first request was added."""
    duration_s: float
    num_live: int
    """Requests unfinished when the step began."""
    num_tokens: int
    """Tokens emitted by all requests together."""
    is_decode: bool
    """No request had its prompt computed in this step."""


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """What one engine process measured."""

    engine: str
    wall_s: float
    """From adding the first request to the last token of the last response."""
    token_ids: dict[str, list[int]]
    """Response of each request id."""
    steps: list[Step]
    num_drafts: int
    num_accepted_tokens: int
    """Draft tokens accepted, bonus excluded."""
    startup_s: float
    own_shares: dict[str, float] = field(default_factory=dict)
    """Shares of the wall time that TLT spent drafting and tapping features."""

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> JobResult:
        """Builds the record from its JSON form."""
        return cls(**{**data, "steps": [Step(**step) for step in data["steps"]]})

    @property
    def num_tokens(self) -> int:
        """Tokens of all responses."""
        return sum(len(ids) for ids in self.token_ids.values())

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all responses over the wall time."""
        return self.num_tokens / self.wall_s

    @property
    def acceptance_length(self) -> float:
        """Mean tokens a request emits in a step that verified a draft, bonus included; 1 when nothing was drafted."""
        return 1.0 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else 1.0

    def live_batch_seconds(self) -> dict[str, float]:
        """Returns the seconds spent at each range of ``LIVE_BATCH_RANGES``, by label."""
        return {
            label: sum(step.duration_s for step in self.steps if low <= step.num_live <= high)
            for label, low, high in LIVE_BATCH_RANGES
        }

    def decode_step_ms(self, num_live: int | None = None) -> list[float]:
        """Returns the durations of steps without a prefill, ascending, at one number of live requests or at all."""
        return sorted(
            1e3 * step.duration_s
            for step in self.steps
            if step.is_decode and (num_live is None or step.num_live == num_live)
        )
