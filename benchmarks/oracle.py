"""A drafter that was told the responses beforehand: what right drafts gain at the most."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import oracle_answers
from tlt_engine.spec.drafter import DraftRequest, FinishReason
from tlt_engine.spec.tree import DraftTree


class OracleDrafter:
    """Drafts the next tokens of the known response of each request, as a chain."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftTree]:
        """Returns one chain a request, as long as fits."""
        return [
            DraftTree.chain(
                oracle_answers.continuation(request.token_ids.tolist(), min(request.max_nodes, request.max_depth))
            )
            for request in requests
        ]

    def observe(self, req_id: str, tree: DraftTree, accepted_nodes: Sequence[int]) -> None:
        """Learns nothing: it knows."""

    def finish(self, req_id: str, reason: FinishReason) -> None:
        """Keeps the answers: another repetition may ask for them."""

    def set_target_version(self, target_version: int) -> None:
        """Keeps the answers."""

    def num_bytes(self) -> dict[str, tuple[int, int]]:
        """Reports no buffer: the answers belong to the benchmark."""
        return {}
