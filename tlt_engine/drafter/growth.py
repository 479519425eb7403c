"""Draft trees from a drafter's distributions: grown level by level, cut to the likeliest nodes.

Shape suffixes: B requests, K nodes expanded a level, C children kept a node, N nodes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tlt_engine import ops
from tlt_engine.spec.tree import ROOT, DraftTree

Children = tuple[Tensor, Tensor]
"""Log-probabilities of the likeliest children of each node, and their indices into the draft vocabulary."""


@dataclass(frozen=True)
class Frontier:
    """The nodes of one level that are expanded."""

    draft_ids_BK: Tensor
    """int64. Their tokens, as indices into the draft vocabulary."""
    parents_BK: Tensor
    """int64. Place of each one's parent in the frontier of the level before; 0 at the first level."""


class TreeGrowth:
    """Candidates of all levels with the log-probability of the path to each.

    Source: EAGLE-2 (arXiv:2406.16858), expansion and re-ranking by cumulative probability.
    """

    def __init__(self, num_expanded: int) -> None:
        """Starts with the roots.

        Args:
            num_expanded: ``K``, nodes of a request whose children are grown at each level.
        """
        self._num_expanded = num_expanded
        self._draft_ids: list[Tensor] = []
        self._parents: list[Tensor] = []
        self._scores: list[Tensor] = []
        self._frontier_scores: Tensor | None = None
        self._frontier_nodes: Tensor | None = None

    def first_level(self, children: Children) -> Frontier:
        """Grows the children of the roots, ``[B, 1, C]``."""
        scores_BC, draft_ids_BC = (part[:, 0] for part in children)
        self._draft_ids.append(draft_ids_BC)
        self._parents.append(torch.full_like(draft_ids_BC, ROOT))
        self._scores.append(scores_BC)
        draft_ids_BK = draft_ids_BC[:, : self._num_expanded]  # children come likeliest first
        self._frontier_scores = scores_BC[:, : self._num_expanded]
        self._frontier_nodes = torch.arange(draft_ids_BK.shape[1], device=scores_BC.device).expand_as(draft_ids_BK)
        return Frontier(draft_ids_BK, torch.zeros_like(draft_ids_BK))

    def next_level(self, children: Children) -> Frontier:
        """Grows the children of the last frontier, ``[B, K, C]``, and chooses the next one."""
        assert self._frontier_scores is not None
        assert self._frontier_nodes is not None
        scores_BKC, draft_ids_BKC = children
        num_children = scores_BKC.shape[-1]
        scores_BN = (self._frontier_scores[..., None] + scores_BKC).flatten(1)
        draft_ids_BN = draft_ids_BKC.flatten(1)
        num_before = sum(scores.shape[1] for scores in self._scores)
        self._draft_ids.append(draft_ids_BN)
        self._parents.append(self._frontier_nodes.repeat_interleave(num_children, dim=1))
        self._scores.append(scores_BN)
        self._frontier_scores, places_BK = scores_BN.topk(min(self._num_expanded, scores_BN.shape[1]), dim=-1)
        self._frontier_nodes = places_BK + num_before
        return Frontier(draft_ids_BN.gather(1, places_BK), places_BK.div(num_children, rounding_mode="floor"))

    def likeliest_frontier(self) -> float:
        """Returns the probability of the likeliest path to a node of the last frontier; waits for the device."""
        assert self._frontier_scores is not None
        return float(self._frontier_scores.max().exp())

    def trees(self, draft_vocabulary: Tensor, max_nodes: list[int], source: str) -> list[DraftTree]:
        """Returns each request's likeliest nodes, parents before children.

        Args:
            draft_vocabulary: ``[draft_vocab]`` int64. Token id of each draft index.
            max_nodes: for each request, most nodes of its tree.
            source: name for the hit rates.

        Raises:
            RuntimeError: the scores are no numbers.
        """
        scores_BN = torch.cat(self._scores, dim=1)
        if bool(scores_BN.isnan().any()):
            raise RuntimeError("the drafter's weights give numbers that are not finite; load another drafter")
        nodes_BN, parents_BN = ops.tree_build(
            scores_BN.float(),
            torch.cat(self._parents, dim=1).int(),
            torch.tensor(max_nodes, dtype=torch.int32, device=scores_BN.device),
            min(max(max_nodes), scores_BN.shape[1]),
        )
        places_BN = nodes_BN.clamp(min=0).long()
        columns = (
            nodes_BN,
            draft_vocabulary[torch.cat(self._draft_ids, dim=1).gather(1, places_BN)],
            parents_BN,
            scores_BN.gather(1, places_BN).exp(),
        )
        trees: list[DraftTree] = []
        for nodes, token_ids, parents, probs in zip(*(column.tolist() for column in columns), strict=True):
            size = sum(node >= 0 for node in nodes)
            trees.append(DraftTree(token_ids[:size], parents[:size], probs[:size], [source] * size))
        return trees
