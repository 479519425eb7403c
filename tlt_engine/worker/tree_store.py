"""Draft trees in flight, by request: vLLM's scheduler carries only their tokens, the shape waits here."""

from collections.abc import Sequence

from tlt_engine.spec.tree import EMPTY_TREE, DraftTree


class TreeStore:
    """Trees proposed in one step and verified in a later one.

    A running request that a step leaves out keeps its drafts in the scheduler, so its tree is kept here too.
    """

    def __init__(self) -> None:
        self._trees: dict[str, DraftTree] = {}
        self.num_truncated = 0
        """Trees of which the scheduler had room for a prefix only."""
        self.num_mismatched = 0
        """Scheduled drafts that are not the stored tree; they are verified as a chain."""

    def put(self, req_id: str, tree: DraftTree) -> None:
        """Keeps the tree just proposed for a request; an empty one forgets the previous tree."""
        if len(tree):
            self._trees[req_id] = tree
        else:
            self._trees.pop(req_id, None)

    def take(self, req_id: str, scheduled_token_ids: Sequence[int]) -> DraftTree:
        """Returns the tree behind the drafts that the scheduler granted, and forgets it.

        Args:
            req_id: the request.
            scheduled_token_ids: a prefix of the proposed tokens. Grammar checks may have cut it, and data-parallel
                padding may have put -1 there; what does not match the stored tree is verified as a chain.
        """
        tree = self._trees.pop(req_id, EMPTY_TREE)
        num_nodes = len(scheduled_token_ids)
        if num_nodes == 0:
            return EMPTY_TREE
        if list(scheduled_token_ids) != tree.token_ids[:num_nodes]:
            self.num_mismatched += any(token_id >= 0 for token_id in scheduled_token_ids)
            return DraftTree.chain(scheduled_token_ids)
        if num_nodes == len(tree):
            return tree
        self.num_truncated += 1
        return tree.select(range(num_nodes))

    def forget(self, req_id: str) -> None:
        """Drops the tree of a request that left."""
        self._trees.pop(req_id, None)

    def __len__(self) -> int:
        return len(self._trees)
