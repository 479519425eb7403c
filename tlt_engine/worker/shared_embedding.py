"""The target's embedding as the drafter sees it.

With tensor parallelism the target looks a token up on all ranks together, but only the first rank drafts: there the
drafter needs the whole table.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from vllm.distributed import get_tp_group
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding


class SharedEmbedding:
    """Looks tokens up in the target's own table, or in the first rank's copy of all parts of it."""

    def __init__(self, target: Any) -> None:
        """Makes the copy if one is needed; all ranks call it together."""
        self._target = target
        self._table: Tensor | None = None
        self.refresh()

    def refresh(self) -> None:
        """Follows a change of the target's weights; all ranks call it together."""
        group = get_tp_group()
        if group.world_size == 1:
            return
        part = next(module for module in self._target.modules() if isinstance(module, VocabParallelEmbedding))
        with torch.inference_mode():
            table = group.all_gather(part.weight.data, dim=0)
        self._table = table if group.is_first_rank else None

    def __call__(self, token_ids: Tensor) -> Tensor:
        """Returns the embeddings ``[T, hidden_size]`` of token ids ``[T]``."""
        if self._table is None:
            embeddings: Tensor = self._target.embed_input_ids(token_ids)
            return embeddings
        return F.embedding(token_ids, self._table)

    def num_bytes(self) -> int:
        """Returns the bytes of the copy; 0 where the target's own table serves."""
        return 0 if self._table is None else self._table.nbytes
