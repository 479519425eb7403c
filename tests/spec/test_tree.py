"""Draft trees and their layout as verify rows."""

import numpy as np
import pytest

from tlt_engine.spec.tree import EMPTY_TREE, ROOT, DraftTree, TreeBatch

FORK = DraftTree([5, 6, 7, 8], [ROOT, ROOT, 0, 2], probs=[0.6, 0.3, 0.5, 0.4])
"""Root -> 5 -> 7 -> 8, and root -> 6."""


def test_any_prefix_is_a_tree():
    for size in range(len(FORK) + 1):
        assert FORK.select(range(size)).problem(10) is None


def test_select_renumbers_parents():
    assert FORK.select([0, 2, 3]) == DraftTree([5, 7, 8], [ROOT, 0, 1], [0.6, 0.5, 0.4])


def test_likeliest_chain_descends_to_the_likeliest_child():
    assert FORK.likeliest_chain().token_ids == [5, 7, 8]
    second_is_likelier = DraftTree([5, 6, 7], [ROOT, ROOT, 1], probs=[0.2, 0.7, 0.6])
    assert second_is_likelier.likeliest_chain() == DraftTree([6, 7], [ROOT, 0], [0.7, 0.6])
    assert DraftTree([5, 6], [ROOT, ROOT]).likeliest_chain().token_ids == [5]


@pytest.mark.parametrize(
    ("tree", "problem"),
    [
        (DraftTree([10], [ROOT]), "token 10 of node 0 is outside the vocabulary of 10"),
        (DraftTree([-1], [ROOT]), "token -1 of node 0"),
        (DraftTree([1, 2], [ROOT, 1]), "parent 1 of node 1 does not stand before it"),
        (DraftTree([1], [-2]), "parent -2 of node 0"),
        (DraftTree([1, 2], [ROOT]), "2 tokens but 1 parents"),
        (DraftTree([1], [ROOT], probs=[0.5, 0.5]), "1 tokens but 2 probs"),
    ],
)
def test_invalid_draft_is_named(tree, problem):
    assert problem in tree.problem(10)


def test_rows_of_a_step():
    batch = TreeBatch.pack([EMPTY_TREE, FORK, DraftTree.chain([1, 2])])
    assert batch.cu_num_rows.tolist() == [0, 1, 6, 9]
    assert batch.parent_rows.tolist() == [-1, -1, 0, 0, 1, 3, -1, 0, 1]
    assert batch.depths.tolist() == [0, 0, 1, 1, 2, 3, 0, 1, 2]
    assert batch.draft_token_ids.tolist() == [-1, -1, 5, 6, 7, 8, -1, 1, 2]
    assert batch.branching_reqs == [1]
    assert batch.req_of_row.tolist() == [0, 1, 1, 1, 1, 1, 2, 2, 2]
    assert batch.path_tokens(1, 5) == [5, 7, 8]
    assert batch.path_tokens(1, 3) == [6]
    assert batch.path_tokens(2, 6) == []


def test_two_children_of_a_chain_tip_are_branching():
    assert TreeBatch.pack([DraftTree([1, 2, 3], [ROOT, 0, 0])]).branching_reqs == [0]


def test_ancestor_masks_hold_the_path_and_nothing_else():
    batch = TreeBatch.pack([FORK])
    assert batch.ancestor_masks([0])[:, 0].tolist() == [0b1, 0b11, 0b101, 0b1011, 0b11011]


def test_ancestor_masks_go_on_in_a_second_word():
    chain_to_70_then_fork = DraftTree([1] * 71, [*range(ROOT, 69), 0])
    masks = TreeBatch.pack([chain_to_70_then_fork]).ancestor_masks([0])
    assert masks.shape == (72, 2)
    bits = np.unpackbits(masks.view(np.uint8).reshape(72, 16), axis=1, bitorder="little")[:, :72]
    expected = np.tril(np.ones((71, 71), dtype=np.uint8))
    assert (bits[:71, :71] == expected).all()
    assert np.flatnonzero(bits[71]).tolist() == [0, 1, 71]
