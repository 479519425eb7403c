"""window_attention refuses what it cannot read; what it computes is in ``drafter/test_key_cache.py``."""

import pytest
import torch

from tlt_engine.ops import window_attention


def arguments():
    return [
        torch.randn(2, 3, 4, 16),
        torch.randn(3, 2, 16, 12),
        torch.randn(3, 2, 12, 16),
        torch.tensor([2, 0]),
        torch.tensor([0, 9]),
        torch.tensor([5, 17]),
        torch.ones(2, 3, 3, dtype=torch.bool),
        4,
        1,
    ]


WRONG_ARGUMENTS = [
    (0, torch.zeros(2, 3, 4, 16, dtype=torch.float64), "query must be float32, but is Double"),
    (0, torch.zeros(2, 3, 5, 16), "5 heads cannot share 2 key-value heads"),
    (1, torch.zeros(3, 2, 12, 16), r"keys must have shape \[3, 2, 16, 12\], but has \[3, 2, 12, 16\]"),
    (2, torch.zeros(3, 2, 12, 8), "values must have head size 16, but has 8"),
    (3, torch.tensor([3, 0]), r"slots must be in \[0, 3\), but request 0 has 3"),
    (4, torch.tensor([0, 8]), r"request 1 must hold at most 8 positions, but holds \[8, 17\)"),
    (5, torch.tensor([5]), "ends must have 2 entries, but has 1"),
    (6, torch.ones(2, 2, 3, dtype=torch.bool), r"visible must be \[2, 3, num_seen\], but has shape \[2, 2, 3\]"),
    (7, 2, r"num_scratch must be in \[3, 12\), but is 2"),
    (8, -1, "depth must not be negative, but is -1"),
]


@pytest.mark.parametrize(("position", "replacement", "message"), WRONG_ARGUMENTS)
def test_wrong_arguments_name_themselves(position, replacement, message):
    inputs = arguments()
    inputs[position] = replacement
    with pytest.raises(RuntimeError, match=message):
        window_attention(*inputs)


def test_no_nodes_give_no_rows():
    inputs = arguments()
    inputs[0], inputs[6] = torch.zeros(2, 0, 4, 16), torch.ones(2, 0, 3, dtype=torch.bool)
    assert window_attention(*inputs).shape == (2, 0, 4, 16)


def test_what_is_no_number_shows():
    inputs = arguments()
    inputs[1][2, :, :, 6] = float("nan")
    out = window_attention(*inputs)
    assert out[0].isnan().all(), "slot 2 is the first request's"
    assert out[1].isfinite().all()


def test_schema_and_fake():
    torch.library.opcheck(torch.ops.tlt_engine.window_attention.default, tuple(arguments()))
