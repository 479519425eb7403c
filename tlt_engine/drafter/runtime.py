"""The drafter at work: from the features of the latest window to draft trees, for several requests at once.

Keys are made from features when they are missing: a few after each step, the whole window when speculation starts or
the weights change. Each level of the tree is one pass over the frontiers of all requests.

Shape suffixes: B requests, K frontier nodes, D hidden size, S scratch nodes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tlt_engine.config import Precision
from tlt_engine.drafter.candidates import ChildChooser
from tlt_engine.drafter.config import DrafterConfig
from tlt_engine.drafter.feature_ring import FeatureRing
from tlt_engine.drafter.growth import Frontier, TreeGrowth
from tlt_engine.drafter.key_cache import KeyCache
from tlt_engine.drafter.model import DrafterModel, Rotary
from tlt_engine.drafter.packed import pack
from tlt_engine.spec.drafter import DraftRequest
from tlt_engine.spec.tree import EMPTY_TREE, DraftTree

Embed = Callable[[Tensor], Tensor]


LEVEL_ROWS = 8
"""Nodes expanded a level on a CPU, all requests together, but at least one of each: there every row costs time, and
with many requests only the likeliest nodes of each can pay."""


@dataclass(frozen=True)
class TreeShape:
    """How far trees grow before they are cut to the likeliest nodes."""

    draft_depth: int
    """Most passes of the drafter, the depth of the tree."""
    top_k: int
    """Most children kept of a node, and nodes of a request expanded a level; on a CPU fewer are where requests are
    many."""
    min_reach: float = 0.0
    """Levels are grown while a path of some request is at least so likely; if not 0, each waits for the device."""


@dataclass(frozen=True)
class _Batch:
    """The requests of one call and where their features and keys are."""

    requests: Sequence[DraftRequest]
    slots: list[int]


@dataclass(frozen=True)
class PreparedModel:
    """Weights laid out for drafting; of no other use."""

    model: DrafterModel
    vocabulary: Tensor
    """``[draft_vocab]`` int64. Token ids that can be drafted."""
    host_vocabulary: Tensor
    num_bytes: int


class DrafterRuntime:
    """Drafts for requests whose features are in the ring, once it has weights."""

    def __init__(
        self,
        config: DrafterConfig,
        embed: Embed,
        ring: FeatureRing,
        num_slots: int,
        shape: TreeShape,
        dtype: torch.dtype,
        precision: Precision = "auto",
    ) -> None:
        """Allocates the keys.

        Args:
            config: shape of the network.
            embed: the target's embedding.
            ring: features, slot for slot; the drafter runs where they are.
            num_slots: slots of the ring.
            shape: of the trees.
            dtype: of the weights and what is computed with them.
            precision: what matrices are multiplied in on a CPU; elsewhere it is ``dtype``.
        """
        self.config = config
        self._embed = embed
        self._ring = ring
        self._shape = shape
        self._precision = precision
        self._dtype, self._device = dtype, ring.device
        num_scratch = shape.top_k * (shape.draft_depth - 1)
        self.keys = KeyCache(config, num_slots, num_scratch, dtype=dtype, device=ring.device)
        self._prepared: PreparedModel | None = None

    def prepare(self, model: DrafterModel) -> PreparedModel:
        """Lays weights out for drafting; any thread may, while others draft.

        Args:
            model: the drafter, of this shape; on a CPU its matrices are packed, it is of no other use then.

        Raises:
            ValueError: it has another shape.
        """
        if model.config != self.config:
            raise ValueError(f"the new drafter has another shape: {model.config}, expected {self.config}")
        model = model.to(self._device, self._dtype).requires_grad_(False)
        vocabulary = model.draft_vocabulary
        return PreparedModel(model, vocabulary, vocabulary.cpu(), pack(model, self._precision))

    def use(self, model: DrafterModel) -> None:
        """Drafts with these weights from the next call on; see ``prepare`` and ``swap``."""
        self.swap(self.prepare(model))

    def swap(self, prepared: PreparedModel | None) -> None:
        """Drafts with these weights from the next call on, and drops what older weights made; None drafts nothing."""
        self._prepared = prepared
        self.keys.forget()

    @property
    def shape(self) -> TreeShape:
        """The largest trees there is room for."""
        return self._shape

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self._device

    @property
    def num_weight_bytes(self) -> int:
        """Bytes of the weights in use."""
        return self._prepared.num_bytes if self._prepared is not None else 0

    @property
    def has_weights(self) -> bool:
        """Whether it drafts at all."""
        return self._prepared is not None

    @property
    def _model(self) -> DrafterModel:
        assert self._prepared is not None
        return self._prepared.model

    @property
    def _vocabulary(self) -> Tensor:
        assert self._prepared is not None
        return self._prepared.vocabulary

    @torch.inference_mode()
    def draft(
        self, requests: Sequence[DraftRequest], *, draft_depth: int | None = None, top_k: int | None = None
    ) -> list[DraftTree]:
        """Grows one tree a request; empty where its latest feature is not known.

        Args:
            requests: what to draft for.
            draft_depth: passes, if fewer than the most that there is room for.
            top_k: children kept of a node, if fewer than the most.

        Returns:
            Trees in the order of ``requests``, with the probability of each path.
        """
        prepared = self._prepared
        ready = [request for request in requests if prepared is not None and self._is_ready(request)]
        if prepared is None or not ready:
            return [EMPTY_TREE] * len(requests)
        batch = _Batch(ready, [self._ring.slot(request.req_id) for request in ready])
        top_k = num_expanded = min(self._shape.top_k, top_k or self._shape.top_k)
        if self._device.type == "cpu":
            num_expanded = max(1, min(num_expanded, LEVEL_ROWS // len(ready)))
        chooser = ChildChooser(ready, prepared.host_vocabulary, top_k)
        growth = TreeGrowth(num_expanded)
        hidden_BD = self._extend(batch)
        frontier = growth.first_level(chooser.children(self._model.logits(hidden_BD)[:, None], 0))
        depth = min(
            self._shape.draft_depth, draft_depth or self._shape.draft_depth, max(request.max_depth for request in ready)
        )
        if depth > 1:
            self._grow(batch, growth, frontier, hidden_BD[:, None], chooser, depth)
        trees = growth.trees(self._vocabulary, [request.max_nodes for request in ready], "learned")
        tree_of = {request.req_id: tree for request, tree in zip(ready, trees, strict=True)}
        return [tree_of.get(request.req_id, EMPTY_TREE) for request in requests]

    def _is_ready(self, request: DraftRequest) -> bool:
        if request.max_nodes <= 0 or request.max_depth <= 0 or request.req_id not in self._ring:
            return False
        start, end = self._ring.extent(request.req_id)
        return end == len(request.token_ids) - 1 and start < end

    def _extend(self, batch: _Batch) -> Tensor:
        """Adds the keys that are missing and returns the layer's output at each request's latest feature."""
        features, token_ids, positions, counts = [], [], [], []
        for request, slot in zip(batch.requests, batch.slots, strict=True):
            start, end = self._ring.extent(request.req_id)
            first = min(self.keys.missing(slot, start, end), end - 1)  # once more if the request is asked for twice
            features.append(self._ring.read(request.req_id, first, end))
            token_ids.append(torch.from_numpy(request.token_ids[first + 1 : end + 1].astype("int64")))
            positions.append(torch.arange(first, end))
            counts.append(end - first)
        hidden = self._model.fuse(torch.cat(features).to(self._dtype))
        embedding = self._embed(torch.cat(token_ids).to(self._device)).to(hidden.dtype)
        position = torch.cat(positions).to(self._device)
        num_rows = torch.tensor(counts, device=self._device)
        slots = torch.tensor(batch.slots, device=self._device).repeat_interleave(num_rows, output_size=len(hidden))
        last = num_rows.cumsum(0) - 1
        sees = torch.ones(len(counts), 1, 0, dtype=torch.bool, device=self._device)

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            self.keys.put(slots, position, key, value)
            for request, slot in zip(batch.requests, batch.slots, strict=True):
                self.keys.advance(slot, len(request.token_ids) - 1)
            return self.keys.attend(batch.slots, query[last, None], sees, 0)[:, 0]

        return self._model(embedding, hidden, self._model.rotary(hidden, position), attend, last)

    def _grow(
        self,
        batch: _Batch,
        growth: TreeGrowth,
        frontier: Frontier,
        hidden_BKD: Tensor,
        chooser: ChildChooser,
        depth: int,
    ) -> None:
        slots = torch.tensor(batch.slots, device=self._device)
        rotary_of_level = self._rotary_of_levels(batch.requests, depth - 1, hidden_BKD)
        sees_BKS: Tensor | None = None
        for level in range(1, depth):
            if self._shape.min_reach and growth.likeliest_frontier() < self._shape.min_reach:
                break
            num_reqs, num_nodes = shape = frontier.draft_ids_BK.shape
            # A node sees itself and whatever its parent saw.
            own = torch.eye(num_nodes, dtype=torch.bool, device=self._device).expand(num_reqs, -1, -1)
            if sees_BKS is not None:
                parents = frontier.parents_BK[..., None].expand(-1, -1, sees_BKS.shape[-1])
                own = torch.cat([own, sees_BKS.gather(1, parents)], dim=-1)
            sees_BKS = own.contiguous()
            parents = frontier.parents_BK[..., None].expand(-1, -1, hidden_BKD.shape[-1])
            embedding = self._embed(self._vocabulary[frontier.draft_ids_BK].flatten()).to(hidden_BKD.dtype)

            def attend(
                query: Tensor, key: Tensor, value: Tensor, level: int = level, sees: Tensor = sees_BKS
            ) -> Tensor:
                queries, keys, values = (part.unflatten(0, sees.shape[:2]) for part in (query, key, value))
                self.keys.put_scratch(slots, keys, values, sees.shape[2] - sees.shape[1])
                return self.keys.attend(batch.slots, queries, sees, level).flatten(0, 1)

            cos, sin = (part.repeat_interleave(num_nodes, dim=0) for part in rotary_of_level[level - 1])
            hidden = self._model(embedding, hidden_BKD.gather(1, parents).flatten(0, 1), (cos, sin), attend)
            hidden_BKD = hidden.unflatten(0, shape)
            frontier = growth.next_level(chooser.children(self._model.logits(hidden_BKD), level))

    def _rotary_of_levels(self, requests: Sequence[DraftRequest], num_levels: int, like: Tensor) -> list[Rotary]:
        """Returns cosine and sine ``[B, 1, H]`` of each level's nodes, which stand next to the roots."""
        first = torch.tensor([len(request.token_ids) - 1 for request in requests], device=self._device)
        positions = torch.arange(num_levels, device=self._device)[:, None] + first
        parts = (part.unflatten(0, positions.shape) for part in self._model.rotary(like, positions.flatten()))
        return list(zip(*(part.unbind() for part in parts), strict=True))
