"""Keeps what the target computed for running requests, as samples to learn from.

Everything of every request for a warm-up; for the background trainer spans of requests as they grow, because the
longest responses are learnt from while they are still being written.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import Tensor

from tlt_engine.drafter_trainer.sample import Sample
from tlt_engine.worker.feature_tap import CommittedRows

BUSY_SHARE = 16
"""While many requests run, one of so many is recorded, so that not only the tail is learnt from."""


class RecordingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much is recorded."""

    max_bytes: int
    """Beyond these nothing more is kept, not even of requests under way."""
    context_tokens: int | None = None
    """Tokens kept before those that are learnt; None keeps whole prompts."""
    span_tokens: int | None = None
    """A request that wrote so many tokens leaves a sample and goes on; None leaves one when it ends."""
    max_running: int | None = None
    """With more requests in a step, one in ``BUSY_SHARE`` is recorded; None records all."""


@dataclass
class _Recording:
    """What is held of a running request."""

    num_prompt_tokens: int
    num_known: int
    """Tokens whose predictions are no longer learnt: of the prompt, and of samples that were left already."""
    pieces: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)
    """First position, features and final hidden states of consecutive tokens."""

    @property
    def end(self) -> int:
        return self.pieces[-1][0] + len(self.pieces[-1][1]) if self.pieces else 0

    def num_bytes(self) -> int:
        return sum(features.nbytes + final.nbytes for _, features, final in self.pieces)


class SampleRecorder:
    """Takes hidden states step by step and hands samples over."""

    def __init__(self, limits: RecordingLimits, deliver: Callable[[Sample], None] | None = None) -> None:
        """Starts empty.

        Args:
            limits: how much is recorded.
            deliver: called with each sample; without it they are kept, within the limit, until they are fetched.
        """
        self.states: Mapping[str, Any] = {}
        """vLLM's state of each request, which has its tokens; the runner's own."""
        self.target_version = 0
        self._limits = limits
        self._deliver = deliver
        self._finished: list[Sample] = []
        self._num_bytes = 0
        self._running: dict[str, _Recording | None] = {}

    def take(
        self, req_ids: Sequence[str], committed: CommittedRows, aux_hidden: Sequence[Tensor], final_hidden: Tensor
    ) -> None:
        """Keeps one step's rows; the arguments are those of ``FeatureTap.take``."""
        if self._num_bytes >= self._limits.max_bytes and not self._relieve():
            return
        kept = []
        for req, req_id in enumerate(req_ids):
            recording = self._recording(req_id)
            if recording is None:
                continue
            start = committed.first_positions[req]
            rows = torch.from_numpy(committed.rows[committed.cu_rows[req] : committed.cu_rows[req + 1]])
            if self._limits.context_tokens is not None:  # what lies further back is neither learnt nor seen
                skipped = max(0, recording.num_known - self._limits.context_tokens - start)
                start, rows = start + skipped, rows[skipped:]
            if len(rows):
                kept.append((req_id, recording, start, rows))
        if not kept:
            return
        rows_of_all = torch.cat([rows for *_, rows in kept])
        num_rows = len(rows_of_all)
        with torch.inference_mode(False):  # what autograd reads later must not be an inference tensor
            features = torch.empty(num_rows, sum(part.shape[-1] for part in aux_hidden), dtype=final_hidden.dtype)
            final = torch.empty(num_rows, final_hidden.shape[-1], dtype=final_hidden.dtype)
        features.copy_(torch.cat([part[rows_of_all] for part in aux_hidden], dim=-1))
        final.copy_(final_hidden[rows_of_all])
        offset = 0
        for req_id, recording, start, rows in kept:
            place = slice(offset, offset + len(rows))
            offset += len(rows)
            self._extend(recording, start, features[place], final[place])
            if self._limits.span_tokens and recording.end - recording.num_known >= self._limits.span_tokens:
                self._leave_sample(req_id, recording)

    def finish(self, req_id: str) -> None:
        """Makes a sample of a request that left; the runner still has its state."""
        recording = self._running.get(req_id)
        if recording is not None:
            self._leave_sample(req_id, recording)
            self._forget(recording)
        self._running.pop(req_id, None)

    def set_target_version(self, target_version: int) -> None:
        """Hands over what the target computed with its earlier weights."""
        for req_id, recording in self._running.items():
            if recording is not None:
                self._leave_sample(req_id, recording)
                self._forget(recording)
        self.target_version = target_version

    def num_bytes(self) -> tuple[int, int]:
        """Returns the bytes held of running requests and their cap."""
        return self._num_bytes, self._limits.max_bytes

    def take_finished(self) -> list[Sample]:
        """Returns the samples since the last call and forgets them."""
        finished, self._finished = self._finished, []
        self._num_bytes -= sum(map(_num_hidden_bytes, finished))
        return finished

    def _recording(self, req_id: str) -> _Recording | None:
        if req_id not in self._running:
            self._running[req_id] = self._admit(req_id)
        return self._running[req_id]

    def _admit(self, req_id: str) -> _Recording | None:
        state = self.states.get(req_id)
        if state is None or state.prompt_token_ids is None:  # embeddings are no tokens
            return None
        most = self._limits.max_running
        if most is not None and len(self.states) > most and zlib.crc32(req_id.encode()) % BUSY_SHARE:
            return None
        return _Recording(len(state.prompt_token_ids), num_known=len(state.prompt_token_ids))

    def _relieve(self) -> bool:
        """Makes room by handing over the largest recording, which begins anew; False if samples are only kept here."""
        running = [(req_id, recording) for req_id, recording in self._running.items() if recording is not None]
        if self._deliver is None or not running:
            return False
        req_id, largest = max(running, key=lambda one: one[1].num_bytes())
        self._leave_sample(req_id, largest)
        self._forget(largest)
        return self._num_bytes < self._limits.max_bytes

    def _extend(self, recording: _Recording, start: int, features: Tensor, final: Tensor) -> None:
        if recording.pieces and start != recording.end:  # preempted: its tokens are computed again
            self._forget(recording)
        recording.pieces.append((start, features, final))
        self._num_bytes += features.nbytes + final.nbytes

    def _leave_sample(self, req_id: str, recording: _Recording) -> None:
        """Makes a sample of what is there, and keeps its end as the context of what follows."""
        state = self.states.get(req_id)
        if not recording.pieces or state is None:
            return
        if len(state.prompt_token_ids) != recording.num_prompt_tokens:  # a session was continued with the user's words
            self._forget(recording)
            self._running[req_id] = None
            return
        first = recording.pieces[0][0]
        with torch.inference_mode(False):
            features = torch.cat([piece[1] for piece in recording.pieces])
            final = torch.cat([piece[2] for piece in recording.pieces])
            written = [*state.prompt_token_ids, *state.output_token_ids][first : first + len(features)]
            tokens = torch.tensor(written)  # the last token of all has no features
        features, final = features[: len(tokens)], final[: len(tokens)]
        sample = Sample(
            req_id=req_id,
            token_ids=tokens,
            features=features,
            final_hidden=final,
            first_position=first,
            num_prompt_tokens=recording.num_known,
            target_version=self.target_version,
            group=f"{zlib.crc32(str(state.prompt_token_ids).encode()):08x}",
        )
        if self._deliver is not None:
            self._deliver(sample)
        else:
            self._finished.append(sample)
            self._num_bytes += _num_hidden_bytes(sample)
        self._forget(recording)
        recording.num_known = max(recording.num_known, first + len(tokens) + 1)
        if self._limits.context_tokens:
            start = max(0, len(tokens) - self._limits.context_tokens)
            recording.pieces = [(first + start, features[start:].clone(), final[start:].clone())]
            self._num_bytes += recording.num_bytes()

    def _forget(self, recording: _Recording) -> None:
        self._num_bytes -= recording.num_bytes()
        recording.pieces = []


def _num_hidden_bytes(sample: Sample) -> int:
    return sample.features.nbytes + sample.final_hidden.nbytes
