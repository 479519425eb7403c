"""What the tree kernel needs to know of its rows in a step, as tensors, and where accepted rows' K/V belong."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tlt_engine.spec.tree import TreeBatch


@dataclass(frozen=True)
class TreeRows:
    """The verify rows of some requests of a step; a request without drafts is a tree of its root alone.

    Rows of a tree are consecutive query rows; row ``r`` has its K/V in slot index ``context_len + r`` of its request.
    """

    req_indices: Tensor
    """``[num_trees]`` int32. Request of each tree."""
    query_starts: Tensor
    """``[num_trees]`` int32. Query row of each root."""
    context_lens: Tensor
    """``[num_trees]`` int32. Committed tokens before each root."""
    cu_num_rows: Tensor
    """``[num_trees + 1]`` int32. Prefix sums of the rows of each tree."""
    depths: Tensor
    """``[total_rows]`` int32. Distance from the root."""
    ancestor_masks: Tensor
    """``[total_rows, words]`` int64. Rows of its own tree that each row sees."""
    query_rows: Tensor
    """``[total_rows]`` int64. Query row of each tree row."""
    positions: Tensor
    """``[total_rows]`` int64. Position of each row: its request's context plus its depth."""
    covers_batch: bool
    """Whether the step has no other query row."""

    @classmethod
    def of_step(
        cls,
        batch: TreeBatch,
        reqs: list[int],
        query_ends: npt.NDArray[np.int32],
        num_computed_tokens: npt.NDArray[np.int32],
        device: torch.device,
    ) -> "TreeRows":
        """Picks the trees of some requests.

        Args:
            batch: the step's verify rows.
            reqs: the requests, ascending.
            query_ends: ``[num_reqs]``. Prefix sums of the step's query rows; a tree's rows are the last ones of its
                request.
            num_computed_tokens: ``[num_reqs]``. Committed tokens of each request before the step.
            device: where the tensors go.
        """
        num_rows = batch.num_rows[reqs]
        query_starts = query_ends[reqs] - num_rows
        depths, cu_num_rows = batch.depths, batch.cu_num_rows
        if len(reqs) < batch.num_reqs:
            depths = depths[np.isin(batch.req_of_row, reqs)]
            cu_num_rows = np.concatenate([[0], np.cumsum(num_rows)], dtype=np.int32)
        context_lens = num_computed_tokens[reqs].astype(np.int32)
        total_rows = len(depths)

        def to_device(values: npt.NDArray[np.generic]) -> Tensor:
            return torch.from_numpy(values).to(device, non_blocking=True)

        return cls(
            req_indices=to_device(np.array(reqs, np.int32)),
            query_starts=to_device(query_starts.astype(np.int32)),
            context_lens=to_device(context_lens),
            cu_num_rows=to_device(cu_num_rows),
            depths=to_device(depths),
            ancestor_masks=to_device(batch.ancestor_masks(reqs)),
            query_rows=to_device(np.arange(total_rows) + np.repeat(query_starts - cu_num_rows[:-1], num_rows)),
            positions=to_device((np.repeat(context_lens, num_rows) + depths).astype(np.int64)),
            covers_batch=total_rows == int(query_ends[-1]),
        )


@dataclass(frozen=True)
class KvMoves:
    """K/V of accepted rows that must move to the front of their request's rows."""

    src_rows: npt.NDArray[np.int64]
    """``[num_moves]``. Query rows whose K/V move, in path order inside a request."""
    dst_rows: npt.NDArray[np.int64]
    """``[num_moves]``. Query rows whose slots receive them; always before the source."""
    cu_moves: npt.NDArray[np.int32]
    """``[num_reqs_with_moves + 1]``. Prefix sums of the moves of each request."""

    @classmethod
    def of_paths(
        cls, trees: list[int], root_rows: npt.NDArray[np.int64], accepted_rows: npt.NDArray[np.int32]
    ) -> "KvMoves":
        """Finds the accepted rows that do not lie where plain decoding would have put them.

        Args:
            trees: requests with a branching tree.
            root_rows: ``[num_reqs]``. Query row of each request's root.
            accepted_rows: ``[num_reqs, width]``. Accepted rows inside the request, padded with -1.
        """
        src: list[int] = []
        dst: list[int] = []
        cu_moves = [0]
        for req in trees:
            root = int(root_rows[req])
            for place, row in enumerate(accepted_rows[req].tolist(), start=1):
                if row < 0:
                    break
                if row != place:
                    src.append(root + row)
                    dst.append(root + place)
            if len(src) > cu_moves[-1]:
                cu_moves.append(len(src))
        return cls(np.array(src, np.int64), np.array(dst, np.int64), np.array(cu_moves, np.int32))

    def __len__(self) -> int:
        return len(self.src_rows)
