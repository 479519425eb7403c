"""Steps whose hidden states tell where they come from."""

import numpy as np
import torch

from tlt_engine.worker.feature_tap import CommittedRows

HIDDEN = torch.arange(12.0)[:, None].expand(12, 2)
ROW_BYTES = 3 * 2 * 4
"""Of the two parts of a feature and of the final hidden state, in float32."""


def step(*, first: int, num_reqs: int) -> CommittedRows:
    """Each request commits two rows from position ``first`` on."""
    rows = np.arange(2 * num_reqs)
    return CommittedRows(rows, list(range(0, 2 * num_reqs + 1, 2)), [first] * num_reqs)


def take(taker, names, first):
    """Lets each named request commit two rows."""
    taker.take(list(names), step(first=first, num_reqs=len(names)), [HIDDEN, -HIDDEN], HIDDEN)
