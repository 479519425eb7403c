"""How far a drafter's chain is accepted on recorded text."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tlt_engine.drafter.model import DrafterModel
from tlt_engine.drafter_trainer.sample import PackedBatch, Sample
from tlt_engine.drafter_trainer.unroll import Embed, unroll


@torch.no_grad()
def chain_hits(model: DrafterModel, batch: PackedBatch, embed: Embed, depth: int) -> tuple[Tensor, Tensor]:
    """Returns whether the drafter's first choice is what the target wrote, from each position and at each depth.

    Args:
        model: the drafter.
        batch: recorded text; greedy, or the acceptance is not that of any sampling rule.
        embed: the target's embedding.
        depth: draft tokens of the chain.

    Returns:
        ``[T, depth]`` bool hits, and ``[T]`` bool: whether the whole chain lies in the recorded text.
    """
    hits, is_whole = [], torch.ones(len(batch), dtype=torch.bool)
    vocabulary = model.draft_vocabulary
    for result in unroll(model, batch, embed, depth):
        written = batch.token_ids[(result.target_index + 1).clamp(max=len(batch) - 1)]
        is_inside = (result.target_index + 1 < len(batch)) & result.is_valid
        is_inside &= batch.sample_of[(result.target_index + 1).clamp(max=len(batch) - 1)] == batch.sample_of
        hits.append((vocabulary[model.logits(result.hidden).argmax(dim=-1)] == written) & is_inside)
        is_whole &= is_inside
    return torch.stack(hits, dim=1), is_whole


def chain_acceptance(model: DrafterModel, samples: Sequence[Sample], embed: Embed, depth: int) -> list[float]:
    """Returns the acceptance rate at each depth of a chain, over all positions of recorded text.

    ``1 + sum`` of them is the acceptance length.

    Args:
        model: the drafter.
        samples: recorded greedy text.
        embed: the target's embedding.
        depth: draft tokens of the chain.
    """
    accepted = torch.zeros(depth)
    num_positions = 0
    for sample in samples:
        hits, is_whole = chain_hits(model, PackedBatch.pack([sample]), embed, depth)
        accepted += hits[is_whole].long().cumprod(dim=1).sum(dim=0)
        num_positions += int(is_whole.sum())
    return (accepted / max(1, num_positions)).tolist()
