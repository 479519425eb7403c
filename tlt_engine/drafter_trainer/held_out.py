"""Text that is not trained on: which of it is read, and what a drafter is worth on it."""

import math
import zlib
from collections.abc import Sequence

from tlt_engine.drafter.model import DrafterModel
from tlt_engine.drafter.precision import multiply_in
from tlt_engine.drafter_trainer.acceptance import Accepted
from tlt_engine.drafter_trainer.sample import Sample
from tlt_engine.drafter_trainer.unroll import Embed


def spread(samples: Sequence[Sample], max_tokens: int) -> list[Sample]:
    """Returns about so many tokens of all times: the latest alone would let the measure follow the mood of the text.

    Args:
        samples: held out.
        max_tokens: wanted; on average half as many or more are returned, all if they are fewer, one sample at least.

    Returns:
        Mostly the samples of the last call, as long as they are there: what was counted of them need not be again.
    """
    num_tokens = sum(map(len, samples))
    one_in = 1 << max(0, math.ceil(math.log2(num_tokens / max_tokens))) if num_tokens else 1
    return [sample for sample in samples if _number_of(sample) % one_in == 0] or list(samples[:1])


def _number_of(sample: Sample) -> int:
    """Returns a number that has nothing to do with the text, the same each time."""
    return zlib.crc32(f"{sample.req_id} {sample.first_position}".encode())


def latest(samples: Sequence[Sample], max_tokens: int) -> list[Sample]:
    """Returns at most so many tokens of the samples that came last, but one sample at least if there is any."""
    chosen: list[Sample] = []
    room = max_tokens
    for sample in reversed(samples):
        if chosen and len(sample) > room:
            break
        chosen.append(sample)
        room -= len(sample)
    return chosen


class HeldOutScore:
    """The acceptance of one set of weights on held-out samples; what was counted of a sample is remembered."""

    def __init__(self, model: DrafterModel, embed: Embed, depth: int) -> None:
        """Wraps weights that no longer change.

        Args:
            model: the drafter.
            embed: the target's embedding.
            depth: draft tokens of the chain.
        """
        self._model = model
        self._embed = embed
        self._depth = depth
        self._of_sample: dict[int, tuple[Sample, Accepted]] = {}

    def missing(self, samples: Sequence[Sample]) -> list[Sample]:
        """Returns the samples that were not counted yet."""
        return [sample for sample in samples if id(sample) not in self._of_sample]

    def count(self, sample: Sample) -> None:
        """Counts one sample: a forward pass over it."""
        with multiply_in("auto", self._model.fc.weight.device):  # as when it drafts, and half the time
            accepted = Accepted.count(self._model, sample, self._embed, self._depth)
        self._of_sample[id(sample)] = (sample, accepted)

    def total(self, samples: Sequence[Sample]) -> Accepted:
        """Returns the sum over samples that were all counted, and forgets all others."""
        self._of_sample = {id(sample): self._of_sample[id(sample)] for sample in samples}
        return Accepted.total((accepted for _, accepted in self._of_sample.values()), self._depth)
