"""What a drafter is: it sees requests and answers with draft trees; it can never change what is emitted."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tlt_engine.spec.tree import DraftTree


@dataclass(frozen=True)
class DraftRequest:
    """One running request that may be given draft tokens for its next step."""

    req_id: str
    token_ids: npt.NDArray[np.int32]
    """``[num_tokens]``. Prompt and output so far; a view that is only valid during the call."""
    num_prompt_tokens: int
    max_nodes: int
    """Most nodes that can be verified; a larger tree is cut."""
    seed: int | None
    """Seed of the noise its tokens are drawn with; None if it is greedy. The next token has output position
    ``len(token_ids) - num_prompt_tokens``."""
    max_depth: int
    """Most draft tokens that can be accepted before the request must end; deeper nodes are cut."""
    temperature: float = 1.0
    """Of a request with a seed; it divides the target's logits before the noise is added."""
    is_chain_only: bool = False
    """Whether its nodes must follow one another; other trees are cut to their likeliest chain."""


class FinishReason(Enum):
    """How a request left the engine, as far as the worker can tell."""

    COMPLETED = "completed"
    ABORTED = "aborted"


class Drafter(Protocol):
    """Proposes draft trees; every method may raise, which costs drafts and never a token."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftTree]:
        """Returns one tree a request, possibly empty, in the order of ``requests``."""

    def observe(self, req_id: str, tree: DraftTree, accepted_nodes: Sequence[int]) -> None:
        """Learns which nodes of the verified ``tree`` were accepted, in path order."""

    def finish(self, req_id: str, reason: FinishReason) -> None:
        """Forgets a request that will not come back."""

    def set_target_version(self, target_version: int) -> None:
        """Learns that the target's weights changed; what older weights wrote is worth less."""

    def num_bytes(self) -> dict[str, tuple[int, int]]:
        """Returns, for each buffer, the bytes in use and the cap."""
