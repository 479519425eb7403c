"""Which tokens a drafter can draft."""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from tlt_engine.drafter_trainer.sample import Sample


def choose_draft_vocabulary(samples: Sequence[Sample], draft_vocab_size: int, vocab_size: int) -> Tensor:
    """Returns the tokens that the samples hold most often, filled up with the lowest ids, which are the commonest.

    Args:
        samples: recorded text.
        draft_vocab_size: how many are wanted.
        vocab_size: of the target.

    Returns:
        ``[draft_vocab_size]`` int64, ascending.
    """
    counts = Counter(token_id for sample in samples for token_id in sample.token_ids.tolist())
    chosen = {token_id for token_id, _ in counts.most_common(draft_vocab_size)}
    for token_id in range(vocab_size):
        if len(chosen) == draft_vocab_size:
            break
        chosen.add(token_id)
    return torch.tensor(sorted(chosen))
