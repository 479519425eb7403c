"""How far a drafter's chain is accepted on recorded text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tlt_engine.drafter.model import DrafterModel
from tlt_engine.drafter_trainer.sample import PackedBatch, Sample
from tlt_engine.drafter_trainer.unroll import Embed, unroll


@torch.no_grad()
def chain_hits(model: DrafterModel, batch: PackedBatch, embed: Embed, depth: int) -> tuple[Tensor, Tensor]:
    """Returns whether the drafter's first choice is what the target wrote, at each depth.

    Counted from the positions that the target's own text follows.

    Args:
        model: the drafter.
        batch: recorded text; greedy, or the acceptance is not that of any sampling rule.
        embed: the target's embedding.
        depth: draft tokens of the chain.

    Returns:
        ``[R, depth]`` bool hits, and ``[R]`` bool: whether the whole chain lies in the recorded text.
    """
    hits, inside = [], []
    vocabulary = model.draft_vocabulary
    for result in unroll(model, batch, embed, depth):
        written = batch.token_ids[(result.target_index + 1).clamp(max=len(batch) - 1)]
        is_inside = (result.target_index + 1 < len(batch)) & result.is_valid
        next_sample = batch.sample_of[(result.target_index + 1).clamp(max=len(batch) - 1)]
        is_inside &= next_sample == batch.sample_of[result.starts]
        hits.append((vocabulary[model.logits(result.hidden).argmax(dim=-1)] == written) & is_inside)
        inside.append(is_inside)
    return torch.stack(hits, dim=1), torch.stack(inside, dim=1).all(dim=1)


@dataclass(frozen=True)
class Accepted:
    """What of a greedy chain would have been accepted on recorded text."""

    by_depth: tuple[int, ...]
    """Chains whose first ``depth`` tokens were all right, at each depth."""
    num_positions: int
    """Chains that lie in the text as a whole."""

    @classmethod
    def count(cls, model: DrafterModel, sample: Sample, embed: Embed, depth: int) -> "Accepted":
        """Counts one sample.

        Args:
            model: the drafter.
            sample: recorded text.
            embed: the target's embedding.
            depth: draft tokens of the chain.
        """
        hits, is_whole = chain_hits(model, PackedBatch.pack([sample], device=model.fc.weight.device), embed, depth)
        by_depth = hits[is_whole].long().cumprod(dim=1).sum(dim=0)
        return cls(tuple(by_depth.tolist()), int(is_whole.sum()))

    @classmethod
    def total(cls, parts: Iterable["Accepted"], depth: int) -> "Accepted":
        """Returns the sum of counts to one depth."""
        by_depth, num_positions = [0] * depth, 0
        for part in parts:
            by_depth = [total + count for total, count in zip(by_depth, part.by_depth, strict=True)]
            num_positions += part.num_positions
        return cls(tuple(by_depth), num_positions)

    @property
    def rates(self) -> tuple[float, ...]:
        """Acceptance rate at each depth; 0 without any text."""
        return tuple(count / max(1, self.num_positions) for count in self.by_depth)

    @property
    def length(self) -> float:
        """Acceptance length, bonus included."""
        return 1.0 + sum(self.rates)


def chain_acceptance(model: DrafterModel, samples: Sequence[Sample], embed: Embed, depth: int) -> list[float]:
    """Returns the acceptance rate at each depth of a chain, over all positions of recorded text.

    ``1 + sum`` of them is the acceptance length.

    Args:
        model: the drafter.
        samples: recorded greedy text.
        embed: the target's embedding.
        depth: draft tokens of the chain.
    """
    counts = (Accepted.count(model, sample, embed, depth) for sample in samples)
    return list(Accepted.total(counts, depth).rates)
