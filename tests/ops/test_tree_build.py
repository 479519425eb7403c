"""tree_build against the greedy reference, on trees drawn by hand and on random ones with ties."""

import random

import pytest
import torch

from tests.reference.tree_build import likeliest_tree
from tlt_engine.ops import tree_build

# scores, parents, max_nodes -> nodes, parent places
HAND_DRAWN = {
    "siblings": ([-3.0, -1.0, -2.0], [-1, -1, -1], 2, [1, 2], [-1, -1]),
    "chain": ([-1.0, -2.0, -3.0], [-1, 0, 1], 3, [0, 1, 2], [-1, 0, 1]),
    "deep_before_wide": ([-1.0, -3.0, -1.5, -1.7], [-1, -1, 0, 2], 3, [0, 2, 3], [-1, 0, 1]),
    "parent_of_the_second": ([-2.0, -1.0, -2.5, -1.1], [-1, -1, 0, 1], 4, [1, 3, 0, 2], [-1, 0, -1, 2]),
    "sure_child_ties_with_its_parent": ([-1.0, -1.0, -1.0], [-1, 0, 1], 2, [0, 1], [-1, 0]),
    "room_for_more": ([-1.0, -2.0], [-1, 0], 9, [0, 1], [-1, 0]),
    "no_room": ([-1.0, -2.0], [-1, 0], 0, [], []),
    "impossible_ones_last": ([float("-inf"), -5.0, float("-inf")], [-1, -1, 0], 2, [1, 0], [-1, -1]),
}


def random_candidates(num_candidates, draw):
    """Some levels deep, in steps of a quarter, so that ties are frequent."""
    parents, scores = [], []
    for candidate in range(num_candidates):
        parent = draw.randrange(-1, candidate) if candidate > 2 else -1
        parents.append(parent)
        scores.append((scores[parent] if parent >= 0 else 0.0) - 0.25 * draw.randrange(4))
    return scores, parents


def build(cases, limits, width, device):
    nodes, parents = tree_build(
        torch.tensor([scores for scores, _ in cases], device=device),
        torch.tensor([parents for _, parents in cases], dtype=torch.int32, device=device),
        torch.tensor(limits, dtype=torch.int32, device=device),
        width,
    )
    assert nodes.dtype == parents.dtype == torch.int32
    return nodes.cpu().tolist(), parents.cpu().tolist()


def padded(values, width):
    return values + [-1] * (width - len(values))


@pytest.mark.parametrize("name", HAND_DRAWN)
def test_hand_drawn_candidates(name, device):
    scores, parents, limit, nodes, places = HAND_DRAWN[name]
    assert likeliest_tree(scores, parents, limit) == (nodes, places)
    width = max(limit, 1)
    assert build([(scores, parents)], [limit], width, device) == ([padded(nodes, width)], [padded(places, width)])


@pytest.mark.parametrize("num_reqs", [1, 15, 70])  # alone, one task, several tasks of the thread pool
@pytest.mark.parametrize("num_candidates", [1, 20, 300])  # one, fewer and more than the threads of a block
def test_random_candidates_match_reference(num_candidates, num_reqs, device):
    draw = random.Random(1000 * num_candidates + num_reqs)
    cases = [random_candidates(num_candidates, draw) for _ in range(num_reqs)]
    limits = [draw.randrange(0, min(24, num_candidates) + 1) for _ in range(num_reqs)]
    expected = [likeliest_tree(*case, limit) for case, limit in zip(cases, limits, strict=True)]
    if num_candidates > 1:
        assert any(len(set(scores)) < len(scores) for scores, _ in cases), "inputs no longer hold ties"
    nodes, places = build(cases, limits, 24, device)
    assert nodes == [padded(found, 24) for found, _ in expected]
    assert places == [padded(found, 24) for _, found in expected]


def test_a_limit_above_the_width_is_the_width(device):
    assert build([([-1.0, -2.0, -3.0], [-1, -1, -1])], [3], 2, device) == ([[0, 1]], [[-1, -1]])


def test_no_requests_and_no_candidates(device):
    for shape in ((0, 5), (2, 0)):
        nodes, _ = tree_build(
            torch.zeros(shape, device=device),
            torch.zeros(shape, dtype=torch.int32, device=device),
            torch.ones(shape[0], dtype=torch.int32, device=device),
            3,
        )
        assert nodes.tolist() == [[-1] * 3] * shape[0]


WRONG_ARGUMENTS = [
    (0, torch.zeros(2, 3, dtype=torch.float64), "scores must be Float, but is Double"),
    (0, torch.zeros(3), r"scores must have 2 dimensions, but has shape \[3\]"),
    (1, torch.zeros(2, 4, dtype=torch.int32), r"parents must have shape \[2, 3\], but has \[2, 4\]"),
    (1, torch.full((3, 2), -1, dtype=torch.int32).T, r"parents must be contiguous, but has strides \[1, 2\]"),
    (
        1,
        torch.tensor([[-1, 0, 0], [-1, 1, 0]], dtype=torch.int32),
        "parents must stand before their children, but candidate 1 of request 1 names 1",
    ),
    (2, torch.zeros(3, dtype=torch.int32), "max_nodes must have 2 entries, but has 3"),
    (3, -1, "width must not be negative, but is -1"),
]


@pytest.mark.parametrize(("position", "replacement", "message"), WRONG_ARGUMENTS)
def test_wrong_arguments_name_themselves(position, replacement, message):
    parents = torch.tensor([[-1, 0, 0], [-1, 0, 0]], dtype=torch.int32)
    arguments = [torch.zeros(2, 3), parents, torch.ones(2, dtype=torch.int32), 2]
    arguments[position] = replacement
    with pytest.raises(RuntimeError, match=message):
        tree_build(*arguments)


def test_schema_and_fake(device):
    scores, parents = random_candidates(9, random.Random(3))
    arguments = (
        torch.tensor([scores, scores], device=device),
        torch.tensor([parents, parents], dtype=torch.int32, device=device),
        torch.tensor([4, 9], dtype=torch.int32, device=device),
    )
    torch.library.opcheck(torch.ops.tlt_engine.tree_build.default, (*arguments, 6))
