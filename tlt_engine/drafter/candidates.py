"""Which tokens a node's children are: the likeliest, given the noise that the target's draw will add.

Shape suffixes: B requests, K nodes, V draft vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tlt_engine import ops
from tlt_engine.drafter.growth import Children
from tlt_engine.spec.drafter import DraftRequest


class ChildChooser:
    """Values tokens for the requests of one call.

    Where the target draws, it takes the token whose score plus noise is largest, and the noise is known before the
    target has run. The drafter adds the same noise to its own scores: so it need not guess what chance will do, only
    what the target thinks.
    """

    def __init__(self, requests: Sequence[DraftRequest], vocabulary: Tensor, top_k: int) -> None:
        """Reads the keys of the noise.

        Args:
            requests: the ``B`` requests.
            vocabulary: ``[V]`` int64 on the CPU. Token ids of the draft vocabulary, ascending.
            top_k: children of a node.
        """
        self._vocabulary = vocabulary
        self._top_k = min(top_k, len(vocabulary))
        temperatures = [0.0 if req.seed is None else req.temperature for req in requests]
        self._temperature = torch.tensor(temperatures, dtype=torch.float32)
        self._seeds = torch.tensor([req.seed or 0 for req in requests], dtype=torch.int64)
        self._positions = torch.tensor([len(req.token_ids) - req.num_prompt_tokens for req in requests])

    def children(self, logits_BKV: Tensor, depth: int) -> Children:
        """Returns the likeliest children of each node, likeliest first.

        Args:
            logits_BKV: the drafter's, float.
            depth: of the nodes, 0 for the roots.
        """
        logits_BKV = logits_BKV.float()
        keys = (self._temperature, self._seeds, self._positions + depth)
        if logits_BKV.device.type == "cpu":
            return ops.draft_topk(logits_BKV, self._vocabulary, *keys, self._top_k)
        log_probs_BKV = noisy_scores(logits_BKV, self._vocabulary, *keys).log_softmax(dim=-1)
        scores, draft_ids = log_probs_BKV.topk(self._top_k, dim=-1)
        return scores, draft_ids


def noisy_scores(
    logits_BKV: Tensor, vocabulary_V: Tensor, temperature_B: Tensor, seeds_B: Tensor, positions_B: Tensor
) -> Tensor:
    """Returns ``logits / temperature + noise`` where the target draws, the logits where it is greedy.

    Args:
        logits_BKV: float, on any device.
        vocabulary_V: int64 on the CPU. Token ids.
        temperature_B: float32 on the CPU, 0 for greedy requests.
        seeds_B: int64 on the CPU. Keys of the noise.
        positions_B: int64 on the CPU. Output positions.
    """
    drawn = temperature_B.nonzero()[:, 0]
    if not len(drawn):
        return logits_BKV
    draft_vocab = len(vocabulary_V)
    noise = ops.gumbel_noise(
        seeds_B[drawn].repeat_interleave(draft_vocab),
        positions_B[drawn].repeat_interleave(draft_vocab),
        vocabulary_V.repeat(len(drawn)),
    ).view(len(drawn), 1, draft_vocab)
    device = logits_BKV.device
    scores_BKV = logits_BKV.clone()
    rows = drawn.to(device)
    scores_BKV[rows] = logits_BKV[rows] / temperature_B[drawn].to(device)[:, None, None] + noise.to(device)
    return scores_BKV
