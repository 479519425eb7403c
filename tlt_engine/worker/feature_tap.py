"""Takes the target's features of committed tokens out of each step, for the drafter's ring.

Committed are the rows of a prefill, the root, and the accepted rows of its tree; rejected rows are never seen again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tlt_engine.drafter.feature_ring import FeatureRing


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
