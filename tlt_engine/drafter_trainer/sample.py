"""What the target computed for a run of tokens, and several such runs side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """Consecutive tokens of one request with what the target computed at each; equal to itself only."""

    req_id: str
    token_ids: Tensor
    """``[num_tokens]`` int64."""
    features: Tensor
    """``[num_tokens, num_aux * target_hidden]``. Outputs of the auxiliary layers, side by side."""
    final_hidden: Tensor
    """``[num_tokens, target_hidden]``. What the target's head reads: the prediction of the token after."""
    first_position: int = 0
    """Position of the first token in its request."""
    num_prompt_tokens: int = 0
    """Tokens of the request that the target did not write; what follows them is learnt."""
    target_version: int = 0
    group: str = ""
    """What belongs together, such as the responses to one prompt; the request alone if it is empty."""

    def __len__(self) -> int:
        return len(self.token_ids)

    def num_learnt(self) -> int:
        """Returns how many predictions can be learnt: of a token that the target wrote, after one that is here."""
        return max(0, min(len(self) - 1, self.num_predictions()))

    def num_predictions(self) -> int:
        """Returns how many of its last positions predict a token that the target wrote, here or after the end."""
        return min(len(self), max(0, self.first_position + len(self) - (self.num_prompt_tokens - 1)))

    def num_bytes(self) -> int:
        """Returns the bytes of its tensors."""
        return sum(tensor.nbytes for tensor in (self.token_ids, self.features, self.final_hidden))


@dataclass(frozen=True)
class PackedBatch:
    """Samples laid end to end; ``T`` is the number of their tokens."""

    token_ids: Tensor
    """``[T]`` int64."""
    features: Tensor
    """``[T, num_aux * target_hidden]`` float."""
    positions: Tensor
    """``[T]`` int64. Position in the request."""
    sample_of: Tensor
    """``[T]`` int64. Index of the sample."""
    is_learnt: Tensor
    """``[T]`` bool. Whether the target itself wrote the token after this one."""

    @classmethod
    def pack(
        cls, samples: Sequence[Sample], dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> "PackedBatch":
        """Lays samples end to end.

        Args:
            samples: at least one.
            dtype: of the hidden states; samples keep the model's own.
            device: where the tensors go.
        """
        positions = [torch.arange(len(sample)) + sample.first_position for sample in samples]
        lengths = torch.tensor([len(sample) for sample in samples])
        parts = (
            torch.cat([sample.token_ids for sample in samples]),
            torch.cat([sample.features for sample in samples]).to(device).to(dtype),
            torch.cat(positions),
            torch.arange(len(samples)).repeat_interleave(lengths),
            torch.cat([torch.arange(-len(sample), 0) >= -sample.num_predictions() for sample in samples]),
        )
        return cls(*(part.to(device) for part in parts))

    def __len__(self) -> int:
        return len(self.token_ids)

    def blocks(self) -> list[slice]:
        """Returns the rows of each sample."""
        ends = self.sample_of.bincount().cumsum(0).tolist()
        return [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
