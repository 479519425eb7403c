"""tree_accept against the recursive reference, on trees drawn by hand and on steered random ones."""

import random

import pytest
import torch
from torch import Tensor

from tests.reference.tree_accept import accepted_path
from tlt_engine.ops import tree_accept

Tree = tuple[list[int], list[int], list[int]]

# parent_rows, draft_token_ids, target_token_ids -> accepted rows
HAND_DRAWN: dict[str, tuple[list[int], list[int], list[int], list[int]]] = {
    "root_alone": ([-1], [5], [7], []),
    "chain_taken_whole": ([-1, 0, 1, 2], [0, 1, 2, 3], [1, 2, 3, 9], [1, 2, 3]),
    "chain_cut_in_the_middle": ([-1, 0, 1, 2], [0, 1, 2, 3], [1, 8, 3, 9], [1]),
    "second_sibling": ([-1, 0, 0, 2], [0, 4, 5, 6], [5, 0, 6, 0], [2, 3]),
    "strangers_child_holds_the_token": ([-1, 0, 0, 1], [0, 4, 5, 6], [5, 0, 6, 0], [2]),
    "first_of_two_equal_siblings": ([-1, 0, 0, 1, 2], [0, 4, 4, 6, 7], [4, 6, 7, 0, 0], [1, 3]),
    "no_way_back_to_the_second_sibling": ([-1, 0, 0, 2], [0, 4, 4, 7], [4, 7, 7, 0], [1]),
    "unknown_target_matches_nothing": ([-1, 0, 1], [0, -1, -1], [-1, -1, -1], []),
    "padding_row_is_not_a_child": ([-1, 0, 0], [0, -1, 3], [3, 0, 0], [2]),
    "walk_stops_at_unknown_target": ([-1, 0, 1, 2], [0, 1, 2, 3], [1, 2, -1, 3], [1, 2]),
    "token_zero_is_a_token": ([-1, 0, 1], [9, 0, 0], [0, 0, 0], [1, 2]),
    "root_token_is_not_read": ([-1, 0], [3, 4], [3, 3], []),
}


def flat(trees: list[Tree]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Joins trees into the op's arguments."""
    sizes = torch.tensor([0] + [len(parents) for parents, _, _ in trees])
    columns = [[value for tree in trees for value in tree[column]] for column in range(3)]
    return (
        torch.tensor(columns[0], dtype=torch.int32),
        torch.tensor(columns[1], dtype=torch.int64),
        torch.tensor(columns[2], dtype=torch.int64),
        sizes.cumsum(0).to(torch.int32),
    )


def steered_tree(num_rows: int, draw: random.Random) -> Tree:
    """A tree whose tokens repeat across parents and whose targets mostly name a child of the row or a stranger's."""
    parents = [-1] + [draw.randrange(max(0, row - 4), row) for row in range(1, num_rows)]
    drafts = [draw.randrange(6) for _ in range(num_rows)]
    targets = []
    for row in range(num_rows):
        own = [drafts[child] for child in range(num_rows) if parents[child] == row]
        choice = draw.random()
        if own and choice < 0.85:
            targets.append(draw.choice(own))
        else:
            targets.append(draw.choice(drafts) if choice < 0.95 else -1)
    return parents, drafts, targets


def assert_accepts(trees: list[Tree], expected: list[list[int]], max_accepted: int, device: torch.device) -> None:
    rows, num_accepted = tree_accept(*(tensor.to(device) for tensor in flat(trees)), max_accepted)
    padded = [path + [-1] * (max_accepted - len(path)) for path in expected]
    assert rows.dtype == num_accepted.dtype == torch.int32
    assert rows.cpu().tolist() == padded
    assert num_accepted.cpu().tolist() == [len(path) for path in expected]


@pytest.mark.parametrize("name", HAND_DRAWN)
def test_hand_drawn_tree(name, device):
    *tree, expected = HAND_DRAWN[name]
    assert accepted_path(*tree) == expected
    assert_accepts([tuple(tree)], [expected], max(len(tree[0]) - 1, 1), device)


def test_requests_do_not_see_each_other(device):
    trees = [tuple(tree) for *tree, _ in HAND_DRAWN.values()]
    assert_accepts(trees, [expected for *_, expected in HAND_DRAWN.values()], 4, device)


@pytest.mark.parametrize("num_reqs", [1, 33, 200])  # alone, one task, several tasks of the thread pool
@pytest.mark.parametrize("max_rows", [2, 17, 64])  # one draft, odd, one 64-bit ancestor word
def test_steered_trees_match_reference(max_rows, num_reqs, device):
    draw = random.Random(1000 * max_rows + num_reqs)
    trees = [steered_tree(draw.randint(max(1, max_rows // 2), max_rows), draw) for _ in range(num_reqs)]
    expected = [accepted_path(*tree) for tree in trees]
    if num_reqs > 1 and max_rows > 2:
        mean = sum(map(len, expected)) / num_reqs
        assert 1 < mean < max_rows / 2, "inputs no longer exercise partial acceptance"
    assert_accepts(trees, expected, max_rows - 1, device)


def test_request_without_rows_accepts_nothing(device):
    assert_accepts([([-1, 0], [0, 1], [1, 0]), ([], [], []), ([-1, 0], [0, 2], [2, 0])], [[1], [], [1]], 1, device)


def test_empty_batch(device):
    assert_accepts([], [], 3, device)


WRONG_ARGUMENTS = [
    (0, torch.zeros(4, dtype=torch.int64), "parent_rows must be Int, but is Long"),
    (1, torch.zeros(3, dtype=torch.int64), "draft_token_ids must have 4 entries, but has 3"),
    (2, torch.zeros(8, dtype=torch.int64)[::2], "target_token_ids must be contiguous, but has stride 2"),
    (3, torch.zeros(1, 2, dtype=torch.int32), r"cu_num_rows must have 1 dimension, but has shape \[1, 2\]"),
    (3, torch.tensor([0, 5], dtype=torch.int32), "cu_num_rows must end at no more than 4, but ends at 5"),
    (3, torch.tensor([0, 3, 2], dtype=torch.int32), "cu_num_rows must not decrease, but goes from 3 to 2"),
    (3, torch.tensor([1, 4], dtype=torch.int32), "cu_num_rows must start at 0, but starts at 1"),
    (4, 2, "max_accepted must be at least 3 for request 0 of 4 rows, but is 2"),
]


@pytest.mark.parametrize(("position", "replacement", "message"), WRONG_ARGUMENTS)
def test_wrong_arguments_name_themselves(position, replacement, message):
    arguments = [*flat([([-1, 0, 1, 2], [0, 1, 2, 3], [1, 2, 3, 9])]), 3]
    arguments[position] = replacement
    with pytest.raises(RuntimeError, match=message):
        tree_accept(*arguments)


def test_schema_and_fake(device):
    tree = steered_tree(9, random.Random(3))
    arguments = tuple(tensor.to(device) for tensor in flat([tree, tree]))
    torch.library.opcheck(torch.ops.tlt_engine.tree_accept.default, (*arguments, 8))
