"""What usually follows: a back-off model over recently seen tokens, asked together with the sampling noise.

Suffix trees know what followed here before; where nothing like it was written, the target still tends to emit common
continuations, and of these the one with much noise. The noise of a position is the same for every token sequence that
leads there, so one look at it serves a whole level of the tree.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tlt_engine.spec.noise import NoiseArray, gumbel_noise

TOKENS_PER_GENERATION = 50_000
"""Tokens that are counted before the older half of the counts is dropped."""

BYTES_PER_TOKEN = 350
"""Memory of one counted token: an entry in two of the three tables, as sys.getsizeof of filled ones says."""

MAX_COMMON_TOKENS = 1024
"""Most frequent tokens that are candidates after any context; they cover nine tenths of what is emitted."""

REFRESH_AFTER = 256
"""Tokens counted before the common tokens are chosen anew."""

BIGRAM_DOUBT, TRIGRAM_DOUBT = 3.0, 1.5
"""Occurrences of a context at which half the weight goes to its own counts and half to the shorter context's."""

FLOOR = 1e-7


@dataclass
class _Counts:
    tokens: Counter[int] = field(default_factory=Counter)
    after_one: defaultdict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    after_two: defaultdict[tuple[int, int], Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    num_tokens: int = 0


@dataclass(frozen=True)
class Candidate:
    """A token that may come next."""

    token_id: int
    rank: int
    """0 for the best of the candidates."""
    lead: float
    """How far its score lies above the next one's (rank 0) or below the best one's (others), never negative."""


class BackoffModel:
    """Interpolated counts of tokens after two, one and no tokens, of the last tokens seen."""

    max_bytes = 2 * TOKENS_PER_GENERATION * BYTES_PER_TOKEN

    def __init__(self) -> None:
        self._young, self._old = _Counts(), _Counts()
        self._common = np.zeros(0, np.int64)
        self._common_probs = np.zeros(0)
        self._index: dict[int, int] = {}
        self._counted_since_refresh = REFRESH_AFTER

    def learn(self, token_ids: Sequence[int], num_known: int) -> None:
        """Counts new tokens in their context.

        Args:
            token_ids: up to two tokens of context, then the new ones.
            num_known: how many of them are context.
        """
        counts = self._young
        for place in range(num_known, len(token_ids)):
            token_id = token_ids[place]
            counts.tokens[token_id] += 1
            if place >= 1:
                counts.after_one[token_ids[place - 1]][token_id] += 1
            if place >= 2:
                counts.after_two[token_ids[place - 2], token_ids[place - 1]][token_id] += 1
        counts.num_tokens += len(token_ids) - num_known
        self._counted_since_refresh += len(token_ids) - num_known
        if counts.num_tokens >= TOKENS_PER_GENERATION:
            self._old, self._young = counts, _Counts()

    def level_noise(self, seed: int, position: int) -> NoiseArray:
        """Returns the noise of the common tokens at an output position, ``[num_common]``."""
        self._refresh()
        return gumbel_noise(seed, position, self._common)

    def candidates(self, before: tuple[int, int], noise: NoiseArray | None, count: int) -> list[Candidate]:
        """Returns the tokens likeliest to be drawn next, the best first.

        Args:
            before: the two tokens before.
            noise: noise of the common tokens at the position; None for a greedy request.
            count: how many are wanted.
        """
        self._refresh()
        if not len(self._common):
            return []
        probs = self._mixture(before)
        scores = np.log(probs) if noise is None else np.log(probs) + noise
        count = min(count, len(scores) - 1)
        best = np.argpartition(-scores, count)[: count + 1]
        best = best[np.argsort(-scores[best])]
        values = scores[best].tolist()
        return [
            Candidate(int(self._common[place]), rank, values[0] - values[rank if rank else min(1, len(values) - 1)])
            for rank, place in enumerate(best[:count].tolist())
        ]

    def num_bytes(self) -> int:
        """Returns the estimated memory of the counts."""
        return (self._young.num_tokens + self._old.num_tokens) * BYTES_PER_TOKEN

    def _mixture(self, before: tuple[int, int]) -> npt.NDArray[np.float64]:
        probs = self._common_probs
        for table, context, doubt in (("after_one", before[1], BIGRAM_DOUBT), ("after_two", before, TRIGRAM_DOUBT)):
            followers = [
                counts for generation in (self._young, self._old) if (counts := getattr(generation, table).get(context))
            ]
            total = sum(counts.total() for counts in followers)
            if not total:
                continue
            probs = probs * (doubt / (total + doubt))
            for counts in followers:
                for token_id, times in counts.items():
                    if (place := self._index.get(token_id)) is not None:
                        probs[place] += times / (total + doubt)
        return probs

    def _refresh(self) -> None:
        if self._counted_since_refresh < REFRESH_AFTER:
            return
        self._counted_since_refresh = 0
        totals = self._young.tokens + self._old.tokens
        common = totals.most_common(MAX_COMMON_TOKENS)
        self._common = np.array([token_id for token_id, _ in common], np.int64)
        self._common_probs = np.array([times for _, times in common], np.float64) / max(1, totals.total()) + FLOOR
        self._index = dict(zip(self._common.tolist(), range(len(common)), strict=True))


def last_two(token_ids: Iterable[int]) -> tuple[int, int]:
    """Returns the last two of some tokens, -1 where there are fewer."""
    tail = [-1, -1, *token_ids][-2:]
    return tail[0], tail[1]
