"""``tlt:*`` on vLLM's ``/metrics``: what the worker counts, fetched every few seconds."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client import Counter, Gauge

from tlt_engine.drafter_trainer.publication import Phase

if TYPE_CHECKING:
    from vllm.engine.protocol import EngineClient

logger = logging.getLogger(f"vllm.{__name__}")

EVERY_S = 5.0

State = Mapping[str, Any]


@dataclass(frozen=True)
class _Metric:
    """One metric and where its values are in the worker's state."""

    name: str
    help: str
    read: Callable[[State], Any]
    """Returns a number, None if there is none yet, or numbers by label."""
    label: str | None = None
    is_counter: bool = False


def _of_training(key: str) -> Callable[[State], Any]:
    return lambda state: (state["training"] or {}).get(key)


def _of_buffer(key: str) -> Callable[[State], Any]:
    return lambda state: (state["training"] or {}).get("buffer", {}).get(key)


def _of_adaptive(key: str) -> Callable[[State], Any]:
    return lambda state: state["adaptive"].get(key)


def _rates_by_source(state: State) -> dict[str, float]:
    return {source: counts["hit_rate"] for source, counts in state["sources"].items()}


def _rates_by_depth(state: State) -> dict[str, float]:
    return {str(depth): rate for depth, rate in enumerate(state["acceptance_rate_by_depth"], start=1)}


METRICS = (
    _Metric(
        "tlt:acceptance_length", "Mean tokens of a step with drafts, bonus included.", lambda s: s["acceptance_length"]
    ),
    _Metric("tlt:acceptance_rate_by_depth", "Share of drafts accepted up to a depth.", _rates_by_depth, label="depth"),
    _Metric(
        "tlt:acceptance_rate_by_source",
        "Share of draft tokens accepted, by who proposed them.",
        _rates_by_source,
        label="source",
    ),
    _Metric("tlt:strategy_steps", "Decode steps.", _of_adaptive("steps"), label="strategy", is_counter=True),
    _Metric(
        "tlt:strategy_speedup",
        "Estimated speed-up over plain decoding at the latest size of batch.",
        lambda s: {name: one["speedup"] for name, one in s["adaptive"].get("estimates", {}).items()},
        label="strategy",
    ),
    _Metric("tlt:strategy_switches", "Changes of strategy.", _of_adaptive("switches"), is_counter=True),
    _Metric("tlt:strategy_bucket", "Latest size of batch, rounded to its class.", _of_adaptive("bucket")),
    _Metric("tlt:exploration_share", "Share of decode time lost by trying.", _of_adaptive("exploration_share")),
    _Metric("tlt:drafter_collapses", "Collapses of the drafter.", _of_adaptive("collapses"), is_counter=True),
    _Metric(
        "tlt:step_seconds",
        "Where the time of decode steps went.",
        lambda s: {part: s["adaptive"]["seconds"][part] for part in ("draft", "target", "other")},
        label="part",
        is_counter=True,
    ),
    _Metric("tlt:drafter_version", "Weights that went live.", lambda s: s["drafter_version"]),
    _Metric("tlt:target_version", "Updates of the target's weights.", lambda s: s["target_version"]),
    _Metric("tlt:drafter_failures", "Failures of the drafter.", lambda s: s["drafter_failures"], is_counter=True),
    _Metric(
        "tlt:training_phase",
        "1 for the phase training is in.",
        lambda s: (
            {phase.value: int(s["training"]["phase"] == phase.value) for phase in Phase} if s["training"] else None
        ),
        label="phase",
    ),
    _Metric(
        "tlt:training_is_computing",
        "1 while the trainer computes.",
        lambda s: int(s["training"]["is_computing"]) if s["training"] else None,
    ),
    _Metric("tlt:training_steps", "Optimizer steps.", _of_training("steps")),
    _Metric("tlt:training_tokens", "Tokens trained on.", _of_training("tokens")),
    _Metric("tlt:training_loss", "Loss of the last step.", _of_training("loss")),
    _Metric(
        "tlt:training_held_out_acceptance_length",
        "Of the last candidate, a greedy chain on text that is not trained on.",
        _of_training("held_out_acceptance_length"),
    ),
    _Metric(
        "tlt:training_live_acceptance_length",
        "The same of the weights in use.",
        _of_training("live_acceptance_length"),
    ),
    _Metric("tlt:training_buffer_bytes", "Bytes of samples kept.", _of_buffer("bytes")),
    _Metric("tlt:training_dropped_samples", "Samples dropped.", _of_buffer("dropped"), label="reason", is_counter=True),
    _Metric(
        "tlt:training_skipped", "Micro-batches left out.", _of_training("skipped"), label="reason", is_counter=True
    ),
    _Metric(
        "tlt:training_evaluations",
        "What became of candidates.",
        _of_training("publications"),
        label="outcome",
        is_counter=True,
    ),
    _Metric("tlt:training_seconds", "Seconds spent training.", _of_training("trained_seconds"), is_counter=True),
    _Metric(
        "tlt:training_available_seconds",
        "Seconds in which training was allowed.",
        _of_training("available_seconds"),
        is_counter=True,
    ),
    _Metric("tlt:training_slowdown_ratio", "By how much training slows a decode step.", _of_training("slowdown")),
    _Metric("tlt:training_failures", "Failures of the trainer.", _of_training("failures"), is_counter=True),
)


class Metrics:
    """Prometheus metrics of one engine."""

    def __init__(self) -> None:
        self._metrics: list[tuple[_Metric, Counter | Gauge]] = []
        for metric in METRICS:
            kind = Counter if metric.is_counter else Gauge
            self._metrics.append((metric, kind(metric.name, metric.help, [metric.label] if metric.label else [])))
        self._seen: dict[tuple[str, str], float] = {}

    async def follow(self, engine: "EngineClient") -> None:
        """Keeps the metrics fresh for as long as the engine answers."""
        while True:
            try:
                self.update((await engine.collective_rpc("tlt_status"))[0])
            except Exception as error:  # noqa: BLE001 - an engine that is busy or gone is no reason to end the server
                logger.debug("The state of the worker could not be fetched: %r", error)
            await asyncio.sleep(EVERY_S)

    def update(self, state: State) -> None:
        """Takes over one state of the worker."""
        for metric, collector in self._metrics:
            value = metric.read(state)
            if value is None:
                continue
            for label, number in value.items() if metric.label else [("", value)]:
                child = collector.labels(label) if metric.label else collector
                if isinstance(child, Gauge):
                    child.set(number)
                else:
                    child.inc(max(0.0, number - self._seen.get((metric.name, label), 0.0)))
                    self._seen[metric.name, label] = number
