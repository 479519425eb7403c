"""The drafter at work: from the features of the latest window to draft trees, for several requests at once.

Keys are made from features when they are missing: a few after each step, the whole window when speculation starts or
the weights change. Each level of the tree is one pass over the frontiers of all requests.

Shape suffixes: B requests, K frontier nodes, N heads, S scratch nodes, V draft vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tlt_engine.drafter.feature_ring import FeatureRing
from tlt_engine.drafter.growth import Frontier, TreeGrowth
from tlt_engine.drafter.key_cache import KeyCache
from tlt_engine.drafter.model import DrafterModel
from tlt_engine.spec.drafter import DraftRequest
from tlt_engine.spec.tree import EMPTY_TREE, DraftTree

Embed = Callable[[Tensor], Tensor]

ChooseScores = Callable[[Sequence[DraftRequest], Tensor, int], Tensor]
"""Turns logits ``[B, K, V]`` at a depth (0 first) into log-probabilities that the target emits each token."""


@dataclass(frozen=True)
class TreeShape:
    """How far trees grow before they are cut to the likeliest nodes."""

    draft_depth: int
    """Passes of the drafter, the depth of the tree."""
    top_k: int
    """Children kept of a node, and nodes expanded a level."""


class DrafterRuntime:
    """Drafts for requests whose features are in the ring."""

    def __init__(self, model: DrafterModel, embed: Embed, ring: FeatureRing, num_slots: int, shape: TreeShape) -> None:
        """Allocates the keys.

        Args:
            model: the drafter, without gradients.
            embed: the target's embedding.
            ring: features, slot for slot.
            num_slots: slots of the ring.
            shape: of the trees.
        """
        self.model = model
        self._embed = embed
        self._ring = ring
        self._shape = shape
        weight = model.fc.weight
        num_scratch = shape.top_k * (shape.draft_depth - 1)
        self.keys = KeyCache(model.config, num_slots, num_scratch, dtype=weight.dtype, device=weight.device)
        self.weights_changed()

    def weights_changed(self) -> None:
        """Drops what older weights made."""
        self.keys.forget()
        self._vocabulary = self.model.draft_vocabulary
        self.vocabulary_np = self._vocabulary.cpu().numpy()

    @torch.inference_mode()
    def draft(self, requests: Sequence[DraftRequest], scores: ChooseScores) -> list[DraftTree]:
        """Grows one tree a request; empty where its latest feature is not known.

        Args:
            requests: what to draft for.
            scores: values tokens from logits.

        Returns:
            Trees in the order of ``requests``, with the probability of each path.
        """
        ready = [request for request in requests if self._is_ready(request)]
        if not ready:
            return [EMPTY_TREE] * len(requests)
        hidden_BD = self._extend(ready)
        growth = TreeGrowth(self._shape.top_k)
        logits_BKV = self.model.logits(hidden_BD)[:, None]
        frontier = growth.first_level(scores(ready, logits_BKV, 0)[:, 0])
        depth = min(self._shape.draft_depth, max(request.max_depth for request in ready))
        if depth > 1:
            self._grow(ready, growth, frontier, hidden_BD[:, None], scores, depth)
        trees = growth.trees(self._vocabulary, [request.max_nodes for request in ready], "learned")
        tree_of = {request.req_id: tree for request, tree in zip(ready, trees, strict=True)}
        return [tree_of.get(request.req_id, EMPTY_TREE) for request in requests]

    def _is_ready(self, request: DraftRequest) -> bool:
        if request.max_nodes <= 0 or request.max_depth <= 0 or request.req_id not in self._ring:
            return False
        start, end = self._ring.extent(request.req_id)
        return end == len(request.token_ids) - 1 and start < end

    def _extend(self, requests: Sequence[DraftRequest]) -> Tensor:
        """Adds the keys that are missing and returns the layer's output at each request's latest feature."""
        features, token_ids, positions, counts, is_new = [], [], [], [], []
        for request in requests:
            start, end = self._ring.extent(request.req_id)
            missing = self.keys.missing(self._ring.slot(request.req_id), start, end)
            is_new.append(missing < end)  # not so if the request is asked for twice
            first = min(missing, end - 1)
            features.append(self._ring.read(request.req_id, first, end))
            token_ids.append(torch.from_numpy(request.token_ids[first + 1 : end + 1].astype("int64")))
            positions.append(torch.arange(first, end))
            counts.append(end - first)
        device = self.model.fc.weight.device
        hidden = self.model.fuse(torch.cat(features).to(self.model.fc.weight.dtype))
        embedding = self._embed(torch.cat(token_ids).to(device)).to(hidden.dtype)
        position = torch.cat(positions).to(device)
        last = torch.tensor(counts).cumsum(0) - 1
        if len(hidden) > len(requests):
            keys, values = self.model.keys_values(embedding, hidden, position)
            for request, end, count in zip(requests, last.tolist(), counts, strict=True):
                if count > 1:
                    rows = slice(end + 1 - count, end)
                    self.keys.append(self._ring.slot(request.req_id), keys[rows], values[rows])
        slots = [self._ring.slot(request.req_id) for request in requests]
        nothing = torch.zeros(1, 0, dtype=hidden.dtype, device=device)

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            for place, slot in enumerate(slots):
                if is_new[place]:
                    self.keys.append(slot, key[place, None], value[place, None])
            return torch.cat([self.keys.attend(slot, query[b, None], nothing, 0) for b, slot in enumerate(slots)])

        return self.model(embedding[last], hidden[last], position[last], attend)

    def _grow(
        self,
        requests: Sequence[DraftRequest],
        growth: TreeGrowth,
        frontier: Frontier,
        hidden_BKD: Tensor,
        scores: ChooseScores,
        depth: int,
    ) -> None:
        slots = [self._ring.slot(request.req_id) for request in requests]
        device = hidden_BKD.device
        first_position = torch.tensor([len(request.token_ids) - 1 for request in requests], device=device)
        sees_BKS: Tensor | None = None
        for level in range(1, depth):
            num_reqs, num_nodes = frontier.draft_ids_BK.shape
            # A node sees itself and whatever its parent saw.
            own = torch.eye(num_nodes, dtype=torch.bool, device=device).expand(num_reqs, -1, -1)
            if sees_BKS is not None:
                parents = frontier.parents_BK[..., None].expand(-1, -1, sees_BKS.shape[-1])
                own = torch.cat([own, sees_BKS.gather(1, parents)], dim=-1)
            sees_BKS = own
            bias_BKS = torch.zeros(own.shape, dtype=hidden_BKD.dtype, device=device).masked_fill_(~own, -torch.inf)
            parents = frontier.parents_BK[..., None].expand(-1, -1, hidden_BKD.shape[-1])
            hidden_BKD = hidden_BKD.gather(1, parents)
            positions = (first_position + level - 1)[:, None].expand(-1, num_nodes)
            embedding = self._embed(self._vocabulary[frontier.draft_ids_BK].flatten()).to(hidden_BKD.dtype)

            def attend(
                query: Tensor, key: Tensor, value: Tensor, level: int = level, bias: Tensor = bias_BKS
            ) -> Tensor:
                shape = bias.shape[:2]
                queries, keys, values = (part.unflatten(0, shape) for part in (query, key, value))
                self.keys.put_scratch(slots, keys, values, bias.shape[2] - bias.shape[1])
                return torch.cat([self.keys.attend(slot, queries[b], bias[b], level) for b, slot in enumerate(slots)])

            hidden = self.model(embedding, hidden_BKD.flatten(0, 1), positions.flatten(), attend)
            hidden_BKD = hidden.unflatten(0, (num_reqs, num_nodes))
            frontier = growth.next_level(scores(requests, self.model.logits(hidden_BKD), level))
