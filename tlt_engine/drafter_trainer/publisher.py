"""Whether new weights go live: never worse ones, by what the drafter does on text that it was not trained on."""

import enum
from collections.abc import Mapping

from tlt_engine.drafter_trainer.acceptance import Accepted

FIRST_LENGTH = 1.4
"""Acceptance length a drafter needs before it is used at all."""

IMPROVEMENT = 0.01
"""Gain in acceptance length that counts as one."""

MUCH_WORSE = 0.1
"""Loss of the accepted drafts of a step, as a share, at which training goes back to what it published."""

PATIENCE = 6
"""Evaluations without improvement after which training has come to its end."""


class Verdict(enum.Enum):
    """What is done with the candidate."""

    PUBLISH = "publish"
    GO_ON = "go on"
    ROLL_BACK = "roll back"


class Publisher:
    """Judges candidates against what is live, on the same text."""

    def __init__(self) -> None:
        self.num_published = 0
        self.num_rolled_back = 0
        self.num_not_better = 0
        self.live_length: float | None = None
        """Acceptance length of what is live at the last evaluation; None if nothing is."""
        self._gain = 0.0
        self._best_unpublished = 1.0
        self._evaluations_without_gain = 0

    @property
    def has_converged(self) -> bool:
        """Whether more training on the same text is of no more use."""
        return self._evaluations_without_gain >= PATIENCE

    def judge(self, candidate: Accepted, live: Accepted | None) -> Verdict:
        """Decides about a candidate.

        Args:
            candidate: on the held-out samples.
            live: what is live, on the same samples; None if nothing is.
        """
        live_length = live.length if live is not None else None
        floor = FIRST_LENGTH if live_length is None else live_length
        self._count_gain(candidate.length - (self._best_unpublished if live_length is None else live_length))
        self._best_unpublished = max(self._best_unpublished, candidate.length)
        if candidate.num_positions and candidate.length >= floor:
            self.num_published += 1
            self.live_length = candidate.length
            return Verdict.PUBLISH
        self.num_not_better += 1
        self.live_length = live_length
        if live_length is not None and candidate.length - 1 < (1 - MUCH_WORSE) * (live_length - 1):
            self.num_rolled_back += 1
            return Verdict.ROLL_BACK
        return Verdict.GO_ON

    def start_over(self) -> None:
        """Forgets how long it has been without gain: the text is another."""
        self._gain = 0.0
        self._evaluations_without_gain = 0

    def _count_gain(self, gain: float) -> None:
        """Adds up gains over what was live each time: lengths on other text do not compare."""
        self._gain += max(0.0, gain)
        self._evaluations_without_gain += 1
        if self._gain >= IMPROVEMENT:
            self._gain = 0.0
            self._evaluations_without_gain = 0

    def counts(self) -> Mapping[str, int]:
        """Returns how often each happened."""
        return {
            "published": self.num_published,
            "rolled_back": self.num_rolled_back,
            "not_better": self.num_not_better,
        }
