"""Draft trees as topologically ordered lists: a parent stands before its children, so any prefix is a tree."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

ROOT = -1
"""Parent of the nodes that follow the root; the root is the last emitted token and is not stored."""

MASK_WORD_BITS = 64


@dataclass(frozen=True)
class DraftTree:
    """Draft tokens of one request below its last emitted token.

    ``parents[i]`` is the index of node ``i``'s parent, smaller than ``i``, or ``ROOT``. A chain is a tree in which
    every node's parent is the node before it; no speculation is the empty tree.
    """

    token_ids: list[int]
    parents: list[int]
    probs: list[float] = field(default_factory=list)
    """Estimated probability that the target accepts the path to each node; empty if the drafter does not say."""
    sources: list[str] = field(default_factory=list)
    """Where each node came from, for the hit rates; empty if the drafter does not say."""

    @classmethod
    def chain(cls, token_ids: Sequence[int]) -> "DraftTree":
        """Returns the tree in which ``token_ids`` follow one another."""
        return cls(list(token_ids), list(range(ROOT, len(token_ids) - 1)))

    def __len__(self) -> int:
        return len(self.token_ids)

    def select(self, nodes: Sequence[int]) -> "DraftTree":
        """Returns the tree of ``nodes``, which must be ascending and closed under taking parents."""
        new_index = {ROOT: ROOT} | {node: i for i, node in enumerate(nodes)}
        return DraftTree(
            [self.token_ids[node] for node in nodes],
            [new_index[self.parents[node]] for node in nodes],
            [self.probs[node] for node in nodes] if self.probs else [],
            [self.sources[node] for node in nodes] if self.sources else [],
        )

    def likeliest_chain(self) -> "DraftTree":
        """Returns the path that descends to the likeliest child, or to the first one if there are no estimates."""
        best_child: dict[int, int] = {}
        for node, parent in enumerate(self.parents):
            rival = best_child.setdefault(parent, node)
            if self.probs and self.probs[node] > self.probs[rival]:
                best_child[parent] = node
        path: list[int] = []
        tip = ROOT
        while tip in best_child:
            tip = best_child[tip]
            path.append(tip)
        return self.select(path)

    def within(self, max_nodes: int, max_depth: int) -> "DraftTree":
        """Returns the first ``max_nodes`` nodes of those at most ``max_depth`` deep."""
        depths: list[int] = []
        nodes: list[int] = []
        for node, parent in enumerate(self.parents):
            depths.append(1 if parent == ROOT else depths[parent] + 1)
            if depths[node] <= max_depth:
                nodes.append(node)
        nodes = nodes[:max_nodes]
        return self if len(nodes) == len(self) else self.select(nodes)

    def has_child(self, node: int) -> bool:
        """Returns whether a node, or the root, has children."""
        return node in self.parents

    def problem(self, vocab_size: int) -> str | None:
        """Returns what makes this no valid draft for a vocabulary of ``vocab_size``, or None."""
        if len(self.parents) != len(self.token_ids):
            return f"{len(self.token_ids)} tokens but {len(self.parents)} parents"
        for name, values in (("probs", self.probs), ("sources", self.sources)):
            if values and len(values) != len(self.token_ids):
                return f"{len(self.token_ids)} tokens but {len(values)} {name}"
        for node, (token_id, parent) in enumerate(zip(self.token_ids, self.parents, strict=True)):
            if not 0 <= token_id < vocab_size:
                return f"token {token_id} of node {node} is outside the vocabulary of {vocab_size}"
            if not ROOT <= parent < node:
                return f"parent {parent} of node {node} does not stand before it"
        return None


EMPTY_TREE = DraftTree([], [])


@dataclass(frozen=True)
class TreeBatch:
    """The verify rows of one step: for each request its root, then its draft nodes in order.

    ``total_rows`` is the number of requests plus the number of draft tokens.
    """

    cu_num_rows: npt.NDArray[np.int32]
    """``[num_reqs + 1]``. Prefix sums of the rows of each request."""
    parent_rows: npt.NDArray[np.int32]
    """``[total_rows]``. Row of the parent inside the request; -1 at roots."""
    depths: npt.NDArray[np.int32]
    """``[total_rows]``. Distance from the root."""
    draft_token_ids: npt.NDArray[np.int64]
    """``[total_rows]``. Token of each node; -1 at roots and where a draft must not match."""
    branching_reqs: list[int]
    """Requests whose tree is not a chain, ascending."""

    @classmethod
    def pack(cls, trees: Sequence[DraftTree]) -> "TreeBatch":
        """Lays out the rows of ``trees``, one tree a request."""
        cu_num_rows, branching_reqs = [0], []
        parent_rows: list[int] = []
        depths: list[int] = []
        draft_token_ids: list[int] = []
        for req, tree in enumerate(trees):
            base = len(parent_rows)
            parent_rows.append(-1)
            depths.append(0)
            draft_token_ids.append(-1)
            is_chain = True
            for node, (token_id, parent) in enumerate(zip(tree.token_ids, tree.parents, strict=True)):
                parent_rows.append(parent + 1)
                depths.append(depths[base + parent + 1] + 1)
                draft_token_ids.append(token_id)
                is_chain &= parent == node - 1
            if not is_chain:
                branching_reqs.append(req)
            cu_num_rows.append(len(parent_rows))
        return cls(
            np.array(cu_num_rows, dtype=np.int32),
            np.array(parent_rows, dtype=np.int32),
            np.array(depths, dtype=np.int32),
            np.array(draft_token_ids, dtype=np.int64),
            branching_reqs,
        )

    @property
    def num_reqs(self) -> int:
        """Requests in the batch."""
        return len(self.cu_num_rows) - 1

    @property
    def total_rows(self) -> int:
        """Rows of all requests, roots included."""
        return len(self.parent_rows)

    @cached_property
    def num_rows(self) -> npt.NDArray[np.int32]:
        """``[num_reqs]``. Rows of each request, root included."""
        return np.diff(self.cu_num_rows)

    @cached_property
    def req_of_row(self) -> npt.NDArray[np.int64]:
        """``[total_rows]``. Request of each row."""
        return np.repeat(np.arange(self.num_reqs), self.num_rows)

    def path_tokens(self, req: int, row: int) -> list[int]:
        """Returns the draft tokens from the root (excluded) to flat row ``row`` of request ``req`` (included)."""
        base = int(self.cu_num_rows[req])
        tokens: list[int] = []
        while row != base:
            tokens.append(int(self.draft_token_ids[row]))
            row = base + int(self.parent_rows[row])
        return tokens[::-1]

    def ancestor_masks(self, reqs: Sequence[int]) -> npt.NDArray[np.int64]:
        """Returns which rows of its own request each row sees: its ancestors and itself.

        Args:
            reqs: requests whose rows are wanted.

        Returns:
            ``[rows of reqs, words]`` int64; bit ``j % 64`` of word ``j // 64`` of a row stands for row ``j``.
        """
        num_words = -(-int(self.num_rows[reqs].max(initial=1)) // MASK_WORD_BITS)
        starts, parents = self.cu_num_rows.tolist(), self.parent_rows.tolist()
        masks: list[int] = []
        for req in reqs:
            base = len(masks)
            for row, parent in enumerate(parents[starts[req] : starts[req + 1]]):
                masks.append(1 << row | (masks[base + parent] if parent >= 0 else 0))
        packed = b"".join(mask.to_bytes(8 * num_words, "little") for mask in masks)
        return np.frombuffer(packed, dtype="<i8").reshape(len(masks), num_words).copy()  # torch wants it writable
