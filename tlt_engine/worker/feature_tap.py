"""Takes the target's features of committed tokens out of each step: for the drafter's ring, and for recording.

Committed are the rows of a prefill, the root, and the accepted rows of its tree; rejected rows are never seen again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tlt_engine.drafter.feature_ring import FeatureRing
from tlt_engine.drafter_trainer.sample import Sample

_Piece = tuple[int, Tensor, Tensor]
"""First position, features and final hidden states of consecutive tokens."""


@dataclass(frozen=True)
class CommittedRows:
    """Query rows of a step that became tokens of their requests."""

    rows: npt.NDArray[np.int64]
    """``[num_committed]``. Query rows, request by request, in the order of their positions."""
    cu_rows: list[int]
    """``[num_reqs + 1]``. Prefix sums of the committed rows of each request."""
    first_positions: list[int]
    """``[num_reqs]``. Position of each request's first committed row."""

    @classmethod
    def of_step(
        cls,
        query_ends: npt.NDArray[np.int32],
        root_rows: npt.NDArray[np.int64],
        accepted_rows: npt.NDArray[np.int32],
        num_computed: npt.NDArray[np.int32],
    ) -> "CommittedRows":
        """Finds them.

        Args:
            query_ends: ``[num_reqs]``. Prefix sums of the step's query rows.
            root_rows: ``[num_reqs]``. Query row of each request's root.
            accepted_rows: ``[num_reqs, width]``. Accepted rows inside the request, padded with -1.
            num_computed: ``[num_reqs]``. Tokens of each request that were committed before the step.
        """
        rows: list[int] = []
        cu_rows = [0]
        start = 0
        for end, root, accepted in zip(query_ends.tolist(), root_rows.tolist(), accepted_rows.tolist(), strict=True):
            rows.extend(range(start, root + 1))
            rows.extend(root + row for row in accepted if row > 0)
            cu_rows.append(len(rows))
            start = end
        return cls(np.array(rows, np.int64), cu_rows, num_computed.tolist())


class FeatureTap:
    """Writes the features of tapped requests into the ring; the drafter drops what it no longer needs."""

    def __init__(self, ring: FeatureRing, capture_threshold: int) -> None:
        """Wraps a ring.

        Args:
            ring: where the drafter reads.
            capture_threshold: with more requests in a step than these, no request is newly tapped.
        """
        self.ring = ring
        self._capture_threshold = capture_threshold

    def take(
        self, req_ids: Sequence[str], committed: CommittedRows, aux_hidden: Sequence[Tensor], final_hidden: Tensor
    ) -> None:
        """Takes one step's features.

        Args:
            req_ids: requests of the step.
            committed: their committed rows.
            aux_hidden: ``[num_query_rows, hidden]`` a layer.
            final_hidden: ``[num_query_rows, hidden]``. What the head reads.
        """
        admits = len(req_ids) <= self._capture_threshold
        rows: list[npt.NDArray[np.int64]] = []
        slots: list[int] = []
        positions: list[npt.NDArray[np.int64]] = []
        for req, req_id in enumerate(req_ids):
            if req_id not in self.ring and not (admits and self.ring.admit(req_id)):
                continue
            first, last = committed.cu_rows[req], committed.cu_rows[req + 1]
            start = committed.first_positions[req]
            skipped, slot = self.ring.reserve(req_id, start, last - first)
            rows.append(committed.rows[first + skipped : last])
            positions.append(np.arange(start + skipped, start + last - first))
            slots.extend([slot] * (last - first - skipped))
        if slots:
            self.ring.write(
                torch.tensor(slots),
                torch.from_numpy(np.concatenate(positions)),
                list(aux_hidden),
                torch.from_numpy(np.concatenate(rows)),
            )


class SampleRecorder:
    """Keeps everything of all requests, for warm-up: what training reads later."""

    def __init__(self, max_bytes: int) -> None:
        """Starts empty.

        Args:
            max_bytes: beyond these nothing more is kept, not even of requests under way.
        """
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._running: dict[str, list[_Piece]] = {}
        self._finished: list[Sample] = []

    def take(
        self, req_ids: Sequence[str], committed: CommittedRows, aux_hidden: Sequence[Tensor], final_hidden: Tensor
    ) -> None:
        """Keeps one step's rows; the arguments are those of ``FeatureTap.take``."""
        if self._num_bytes >= self._max_bytes:
            return
        rows = torch.from_numpy(committed.rows)
        with torch.inference_mode(False):  # what autograd reads later must not be an inference tensor
            features = torch.empty(len(rows), sum(part.shape[-1] for part in aux_hidden), dtype=final_hidden.dtype)
            final = torch.empty(len(rows), final_hidden.shape[-1], dtype=final_hidden.dtype)
        features.copy_(torch.cat([part[rows] for part in aux_hidden], dim=-1))
        final.copy_(final_hidden[rows])
        self._num_bytes += features.nbytes + final.nbytes
        for req, req_id in enumerate(req_ids):
            place = slice(committed.cu_rows[req], committed.cu_rows[req + 1])
            start = committed.first_positions[req]
            pieces = self._running.setdefault(req_id, [])
            if pieces and start != pieces[-1][0] + len(pieces[-1][1]):  # preempted: its tokens are computed again
                self._num_bytes -= _size(pieces)
                pieces.clear()
            pieces.append((start, features[place], final[place]))

    def finish(self, req_id: str, state: Any) -> None:
        """Makes a sample of a request that left.

        Args:
            req_id: the request.
            state: vLLM's, with its tokens; None if it never ran. The last token has no features.
        """
        pieces = self._running.pop(req_id, [])
        if not pieces or state is None or state.prompt_token_ids is None:  # embeddings are no tokens
            self._num_bytes -= _size(pieces)
            return
        token_ids = [*state.prompt_token_ids, *state.output_token_ids]
        with torch.inference_mode(False):
            features = torch.cat([piece[1] for piece in pieces])
            final = torch.cat([piece[2] for piece in pieces])
            first = pieces[0][0]
            tokens = torch.tensor(token_ids[first : first + len(features)])
        self._finished.append(
            Sample(
                req_id=req_id,
                token_ids=tokens,
                features=features[: len(tokens)],
                final_hidden=final[: len(tokens)],
                first_position=first,
                num_prompt_tokens=state.num_prompt_tokens,
            )
        )

    def take_finished(self) -> list[Sample]:
        """Returns the samples since the last call and forgets them."""
        finished, self._finished = self._finished, []
        self._num_bytes = sum(_size(pieces) for pieces in self._running.values())
        return finished

    def num_bytes(self) -> tuple[int, int]:
        """Returns the bytes recorded and their cap."""
        return self._num_bytes, self._max_bytes


def _size(pieces: Sequence[_Piece]) -> int:
    return sum(features.nbytes + final.nbytes for _, features, final in pieces)
