"""The emitted law equals the target's, by exact enumeration: every depth-2 tree with 1-3 children over 5 tokens."""

from collections.abc import Callable
from itertools import combinations, product

import pytest
import torch
from torch import Tensor

from tlt_engine import ops

VOCAB = 5
WIDTH = 13  # root, up to 3 children, up to 3 children of each
NOTHING = -1  # a place without a node: its token never matches
PARENT_ROWS = torch.tensor([-1, 0, 0, 0, *[1] * 3, *[2] * 3, *[3] * 3], dtype=torch.int32)

CHILD_SETS = [
    list(tokens) + [NOTHING] * (3 - size) for size in (1, 2, 3) for tokens in combinations(range(VOCAB), size)
]


def target_tables(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """A target whose next token depends on everything before: p(a), p(b | a), p(c | a, b)."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(*[VOCAB] * depth, dtype=torch.float64, generator=generator).softmax(-1) for depth in (1, 2, 3)
    )


def trees_below(children: list[int]) -> Tensor:
    """``[num_trees, WIDTH]`` draft tokens of all trees whose root has these children."""
    below = [CHILD_SETS if child != NOTHING else [[NOTHING] * 3] for child in children]
    return torch.tensor([[NOTHING, *children, *sum(sets, [])] for sets in product(*below)], dtype=torch.int64)


def accept(draft_token_ids: Tensor, target_token_ids: Tensor) -> tuple[Tensor, Tensor]:
    num_reqs = len(draft_token_ids)
    return ops.tree_accept(
        PARENT_ROWS.repeat(num_reqs),
        draft_token_ids.flatten(),
        target_token_ids.flatten(),
        torch.arange(num_reqs + 1, dtype=torch.int32) * WIDTH,
        WIDTH - 1,
    )


def emitted_law(trees: Tensor, tables: tuple[Tensor, Tensor, Tensor], sees: Callable[[Tensor], Tensor]) -> Tensor:
    """The law of the first three emitted tokens, one law a tree.

    Args:
        trees: ``[num_trees, WIDTH]`` draft tokens.
        tables: the target.
        sees: for the draft tokens, ``[num_trees, WIDTH, 2]``: the context that each row's logits were computed from.
    """
    p1, p2, p3 = tables
    law = torch.zeros(len(trees), VOCAB, VOCAB, VOCAB, dtype=torch.float64)
    context = sees(trees)
    index = torch.arange(len(trees))
    for a, b in product(range(VOCAB), repeat=2):
        # Noise is shared within a depth, so all rows of a depth may be given the token of the one that is walked.
        targets = torch.tensor([a, *[b] * 3, *[0] * 9]).repeat(len(trees), 1)
        rows, num_accepted = accept(trees, targets)
        first = rows[:, 0].long()
        second = rows[:, 1].long()
        seen_1 = context[index, first.clamp(min=0), 0]
        prob_b = torch.where(num_accepted >= 1, p2[seen_1, b], p2[a, b])  # not accepted: the next step draws it
        seen_2 = context[index, second.clamp(min=0)]
        prob_c = torch.where(
            (num_accepted == 2)[:, None], p3[seen_2[:, 0], seen_2[:, 1]], p3[a, b].expand(len(trees), VOCAB)
        )
        law[:, a, b] = p1[a] * prob_b[:, None] * prob_c
    return law


def own_path(trees: Tensor) -> Tensor:
    """With the ancestor mask: a child sees itself, a grandchild its parent and itself."""
    context = torch.zeros(*trees.shape, 2, dtype=torch.int64)
    safe = trees.clamp(min=0)
    context[:, 1:4, 0] = safe[:, 1:4]
    context[:, 4:, 0] = safe[:, 1:4].repeat_interleave(3, dim=1)
    context[:, 4:, 1] = safe[:, 4:]
    return context


def everything_before(trees: Tensor) -> Tensor:
    """Without the mask: a row also sees its elder sibling, and takes it for its parent."""
    context = own_path(trees)
    context[:, 2, 0] = trees[:, 1].clamp(min=0)
    return context


def target_law(tables: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    p1, p2, p3 = tables
    return p1[:, None, None] * p2[:, :, None] * p3


@pytest.mark.parametrize("children", CHILD_SETS)
def test_emitted_law_is_the_targets_for_every_tree(children):
    tables = target_tables(seed=1)
    law = emitted_law(trees_below(children), tables, own_path)
    assert (law - target_law(tables)).abs().max() < 1e-12


def test_skipping_the_ancestor_mask_is_caught():
    tables = target_tables(seed=1)
    law = emitted_law(trees_below([0, 1, 2]), tables, everything_before)
    assert (law - target_law(tables)).abs().amax((1, 2, 3)).min() > 1e-3


def test_every_walk_is_exercised():
    trees = trees_below([0, 1, 2])
    targets = torch.tensor([1, *[3] * 3, *[0] * 9]).repeat(len(trees), 1)
    _, num_accepted = accept(trees, targets)
    assert set(num_accepted.tolist()) == {1, 2}
    _, num_accepted = accept(trees, torch.full_like(targets, 4))
    assert set(num_accepted.tolist()) == {0}


def one_step_law(p: Tensor, children: list[int], rule: str) -> Tensor:
    """Law of the first token under multi-round rules with deterministic candidates of drafter probability 1/2."""
    law = torch.zeros(VOCAB, dtype=torch.float64)
    reached = torch.tensor(1.0, dtype=torch.float64)
    residual = p.clone()
    for child in children:
        accept_prob = {"by drafter": torch.tensor(0.5), "resample from p": p[child]}.get(
            rule, residual[child] / residual.sum()
        )
        law[child] += reached * accept_prob
        reached = reached * (1 - accept_prob)
        residual[child] = 0
    rest = p if rule in ("by drafter", "resample from p") else residual / residual.sum()
    return law + reached * rest


@pytest.mark.parametrize("children", [[0], [2, 4], [1, 3, 0]])
def test_accepting_by_drafter_probability_and_resampling_from_p_are_caught(children):
    p = target_tables(seed=3)[0]
    assert (one_step_law(p, children, "multi-round rejection") - p).abs().max() < 1e-12
    for wrong in ("by drafter", "resample from p"):
        assert (one_step_law(p, children, wrong) - p).abs().max() > 1e-3, wrong


def test_walk_accepts_exactly_the_targets_mass_on_the_children():
    p = target_tables(seed=4)[0]
    tree = torch.tensor([[NOTHING, 1, 3, NOTHING, *[NOTHING] * 9]])
    accepted = sum(float(p[a]) for a in range(VOCAB) if int(accept(tree, torch.full((1, WIDTH), a))[1]) >= 1)
    assert accepted == pytest.approx(float(p[1] + p[3]), abs=1e-12)


def test_reusing_one_noise_across_positions_is_caught():
    """With p the same at both depths, one noise gives the same token twice; two noises give the product law."""
    vocab, num_draws = VOCAB, 20_000
    p = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05])
    logits = p.log().repeat(num_draws, 1)
    ones, seeds = torch.ones(num_draws), torch.arange(num_draws)
    first = ops.gumbel_argmax(logits, ones, seeds, torch.zeros(num_draws, dtype=torch.int64))
    for position, is_right in ((1, True), (0, False)):
        second = ops.gumbel_argmax(logits, ones, seeds, torch.full((num_draws,), position))
        joint = torch.bincount(first * vocab + second, minlength=vocab * vocab).reshape(vocab, vocab) / num_draws
        statistic = float(num_draws * ((joint - p[:, None] * p) ** 2 / (p[:, None] * p)).sum())
        assert (statistic < 51.2) == is_right, statistic  # chi-square, 24 degrees of freedom, level 0.001
