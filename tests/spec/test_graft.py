"""Grafted trees hold both drafters' paths once, the likeliest first."""

from tlt_engine.spec.graft import graft
from tlt_engine.spec.tree import ROOT, DraftTree

LEARNED = DraftTree([1, 2, 3], [ROOT, ROOT, 0], [0.6, 0.3, 0.4], ["learned"] * 3)
LOOKUP = DraftTree([1, 3, 9], [ROOT, 0, 1], [0.5, 0.45, 0.44], ["request"] * 3)


def test_a_path_that_both_hold_is_counted_once_with_its_best_estimate():
    tree = graft((LEARNED, LOOKUP), 10)
    assert tree.token_ids == [1, 2, 3, 9]
    assert tree.parents == [ROOT, ROOT, 0, 2]
    assert tree.probs == [0.6, 0.3, 0.45, 0.44]
    assert tree.sources == ["learned", "learned", "request", "request"]


def test_the_likeliest_nodes_fill_the_budget():
    tree = graft((LEARNED, LOOKUP), 3)
    assert tree.token_ids == [1, 3, 9]
    assert tree.problem(10) is None


def test_a_node_brings_its_parents():
    doubted = DraftTree([1], [ROOT], [0.01], ["learned"])
    tree = graft((doubted, DraftTree([1, 3], [ROOT, 0], [0.02, 0.9], ["request"] * 2)), 2)
    assert tree.token_ids == [1, 3]
    assert tree.problem(10) is None


def test_an_empty_tree_changes_nothing():
    assert graft((DraftTree([], []), LOOKUP), 10) == LOOKUP
