"""Grown trees hold the likeliest paths of what was expanded."""

import itertools

import pytest
import torch

from tlt_engine.drafter.growth import TreeGrowth
from tlt_engine.spec.tree import ROOT

VOCABULARY = torch.tensor([10, 11, 12, 13, 14])


def table(path):
    """Any fixed distribution that depends on the path."""
    generator = torch.Generator().manual_seed(hash(path) % 2**31)
    return (2 * torch.randn(5, generator=generator)).log_softmax(-1)


def grow(top_k, depth, num_reqs=2):
    growth = TreeGrowth(top_k)
    num_children = min(top_k, 5)
    first = torch.stack([table((req,)) for req in range(num_reqs)])[:, None]
    frontier = growth.first_level(first.topk(num_children))
    paths = [[(req, token) for token in row] for req, row in enumerate(frontier.draft_ids_BK.tolist())]
    for _ in range(1, depth):
        log_probs = torch.stack([torch.stack([table(path) for path in row]) for row in paths])
        frontier = growth.next_level(log_probs.topk(num_children))
        paths = [
            [
                (*row[parent], token)
                for parent, token in zip(
                    frontier.parents_BK[req].tolist(), frontier.draft_ids_BK[req].tolist(), strict=True
                )
            ]
            for req, row in enumerate(paths)
        ]
    return growth


@pytest.mark.parametrize("max_nodes", [1, 4, 12])
def test_with_all_children_kept_the_nodes_are_the_likeliest_of_all_paths(max_nodes):
    trees = grow(top_k=25, depth=2).trees(VOCABULARY, [max_nodes] * 2, "learned")
    for req, tree in enumerate(trees):
        probs = {}
        for first in range(5):
            probs[(first,)] = table((req,))[first].exp().item()
            for second in range(5):
                probs[first, second] = probs[(first,)] * table((req, first))[second].exp().item()
        best = sorted(probs, key=probs.get, reverse=True)[:max_nodes]
        found = []
        for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
            found.append((*(found[parent] if parent != ROOT else ()), token_id - 10))
        assert set(found) == set(best)
        assert tree.probs == pytest.approx([probs[path] for path in found])
        assert tree.problem(15) is None


@pytest.mark.parametrize(("top_k", "depth"), itertools.product([1, 2, 3], [1, 3]))
def test_trees_are_valid_and_no_wider_than_asked(top_k, depth):
    (tree, _) = grow(top_k, depth).trees(VOCABULARY, [99, 0], "learned")
    assert tree.problem(15) is None
    assert len(tree) == top_k + (depth - 1) * top_k * min(top_k, 5)
    depths = []
    for parent in tree.parents:
        depths.append(1 if parent == ROOT else depths[parent] + 1)
    assert max(depths) == depth
    assert all(tree.probs[parent] >= prob for prob, parent in zip(tree.probs, tree.parents, strict=True) if parent >= 0)
    if top_k == 1:
        assert tree.parents == list(range(-1, depth - 1)), "one child a node is a chain"


def test_scores_that_are_no_numbers_are_told():
    growth = TreeGrowth(2)
    growth.first_level((torch.full((1, 1, 2), float("nan")), torch.zeros(1, 1, 2, dtype=torch.int64)))
    with pytest.raises(RuntimeError, match="numbers that are not finite"):
        growth.trees(VOCABULARY, [3], "learned")
