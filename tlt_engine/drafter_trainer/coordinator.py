"""What the background trainer does next, one piece at a time; a piece is at most one micro-batch long.

Samples come in at any time from another thread. Everything else happens in ``advance``, which one thread calls when
there is time to spare.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tlt_engine.drafter.model import DrafterModel
from tlt_engine.drafter_trainer.acceptance import Accepted
from tlt_engine.drafter_trainer.average import WeightAverage
from tlt_engine.drafter_trainer.held_out import HeldOutScore, latest, spread
from tlt_engine.drafter_trainer.inbox import Inbox
from tlt_engine.drafter_trainer.publication import CoordinatorConfig, Phase, Publication
from tlt_engine.drafter_trainer.publisher import Publisher, Verdict
from tlt_engine.drafter_trainer.sample import Sample
from tlt_engine.drafter_trainer.sample_buffer import SampleBuffer
from tlt_engine.drafter_trainer.snapshot import snapshot
from tlt_engine.drafter_trainer.trainer import Trainer
from tlt_engine.drafter_trainer.unroll import Embed

INBOX_SHARE = 8
"""The inbox may hold a part of so many of the buffer's cap besides."""

DRIFT = 0.1
"""Loss of the accepted drafts of a step, as a share, on new text, at which training that had converged starts again."""

FRUITLESS = 20
"""Steps in a row that could not be applied after which the weights themselves are taken to be spoilt."""

RENEWED = 0.5
"""Share of the buffer that came in since training converged, at which it starts again."""


@dataclass
class _Evaluation:
    """Weights under test."""

    model: DrafterModel
    score: HeldOutScore
    samples: list[Sample]


class Coordinator:
    """Trains, evaluates and publishes; holds the buffer and the only trainer."""

    def __init__(
        self,
        buffer: SampleBuffer,
        build: Callable[[Sequence[Sample]], Trainer],
        embed: Embed,
        publish: Callable[[Publication], None],
        config: CoordinatorConfig,
        *,
        live: DrafterModel | None = None,
        state: dict[str, Any] | None = None,
    ) -> None:
        """Starts with an empty buffer.

        Args:
            buffer: fed from ``inbox``.
            build: makes the trainer of the first samples.
            embed: the target's embedding.
            publish: called with weights that go live.
            config: sizes.
            live: what drafts at the start, and what training goes on from; None if nothing does.
            state: of an earlier run, to go on with.
        """
        self.buffer = buffer
        self.inbox = Inbox(buffer.max_bytes // INBOX_SHARE)
        """Samples that another thread leaves; taken in by ``advance``."""
        self.phase = Phase.COLLECTING
        self.publisher = Publisher()
        self.trainer: Trainer | None = None
        self.last_loss: float | None = None
        self.held_out_length: float | None = None
        """Acceptance length of the last candidate."""
        self.drafter_version = 0 if state is None else state["drafter_version"]
        self._build = build
        self._embed = embed
        self._publish = publish
        self._config = config
        self._average: WeightAverage | None = None
        self._resume_state = state
        self._live = None if live is None else self._score(live)
        self._evaluation: _Evaluation | None = None
        self._step_tokens = 0
        self._next_evaluation = config.evaluation_tokens[0]
        self._best: dict[str, Any] | None = None
        self._added_at_convergence = 0
        self._length_at_convergence: float | None = None
        self._fruitless_steps = 0

    def advance(self) -> bool:
        """Does one piece of work; returns False if there is none. What fails leaves no half of a step behind."""
        try:
            return self._advance()
        except BaseException:
            self.abandon()
            raise

    def _advance(self) -> bool:
        self._take_in()
        if self._evaluation is not None:
            self._evaluate_piece(self._evaluation)
            return True
        if self.trainer is None:
            return self._begin()
        if self.phase is Phase.CONVERGED:
            return self._watch()
        if self._step_tokens >= self._config.step_tokens:
            self._apply(self.trainer)
            return True
        samples = self.buffer.draw(self._config.micro_batch_tokens)
        if not samples:
            return False
        self._step_tokens += sum(map(len, samples))
        self.trainer.accumulate(samples)
        return True

    def follow_new_target(self) -> None:
        """Lets training follow a target whose weights changed; its samples carry the new version."""
        self.abandon()
        if self.trainer is not None:
            self.trainer.follow_new_target()
        self._evaluation = None
        self._go_on()

    def adopt(self, model: DrafterModel) -> None:
        """Takes weights that somebody else published as what is live, and goes on from them.

        Args:
            model: no longer changed by anybody.
        """
        self.drafter_version += 1
        self._live = self._score(model)
        self._evaluation, self._best, self._resume_state = None, None, None
        self.abandon()
        if self.trainer is not None:
            self.trainer.model.load_state_dict(model.state_dict())
            self._average = WeightAverage(self.trainer.model)
            self._best = snapshot(self.state_dict())
        self._go_on()

    def abandon(self) -> None:
        """Forgets the step under way, and frees its gradients; weights stay as they are."""
        self._step_tokens = 0
        if self.trainer is not None:
            self.trainer.abandon()

    def state_dict(self) -> dict[str, Any]:
        """Returns what a later run needs to go on; the tensors are those in use."""
        assert self.trainer is not None
        assert self._average is not None
        return {
            "trainer": self.trainer.state_dict(),
            "average": self._average.state_dict(),
            "drafter_version": self.drafter_version,
        }

    def status(self) -> dict[str, Any]:
        """Returns plain data about the training."""
        trainer, buffer = self.trainer, self.buffer
        return {
            "phase": self.phase.value,
            "steps": trainer.num_steps if trainer else 0,
            "tokens": trainer.num_tokens if trainer else 0,
            "loss": self.last_loss,
            "held_out_acceptance_length": self.held_out_length,
            "live_acceptance_length": self.publisher.live_length,
            "publications": dict(self.publisher.counts()),
            "skipped": dict(trainer.num_skipped) if trainer else {},
            "buffer": {
                "samples": len(buffer),
                "bytes": buffer.num_bytes,
                "cap": buffer.max_bytes,
                "held_out_samples": len(buffer.held_out()),
                "dropped": {**buffer.num_dropped, "not taken in": self.inbox.num_dropped},
            },
        }

    def _take_in(self) -> None:
        while (sample := self.inbox.take()) is not None:
            self.buffer.add(sample)

    def _begin(self) -> bool:
        if self.buffer.num_tokens < self._config.first_tokens or not self.buffer.held_out():
            return False
        trainer = self._build(list(self.buffer))
        average = WeightAverage(trainer.model)
        if self._resume_state is not None:
            state, self._resume_state = self._resume_state, None  # one that does not fit is tried once
            trainer.load_state_dict(snapshot(state["trainer"]))
            average.load_state_dict(state["average"])
        self.trainer, self._average = trainer, average
        if self._live is not None:
            self._best = snapshot(self.state_dict())
        self._next_evaluation = self.trainer.num_tokens + self._config.evaluation_tokens[0]
        self.phase = Phase.TRAINING
        return True

    def _apply(self, trainer: Trainer) -> None:
        assert self._average is not None
        self._step_tokens = 0
        result = trainer.apply()
        self._fruitless_steps = 0 if result.is_applied else self._fruitless_steps + 1
        if self._fruitless_steps >= FRUITLESS:
            self._roll_back()
        if not result.is_applied:
            return
        self.last_loss = result.loss
        self._average.follow(trainer.model)
        if trainer.num_tokens >= self._next_evaluation:
            fewest, most = self._config.evaluation_tokens
            self._next_evaluation = trainer.num_tokens + min(most, max(fewest, trainer.num_tokens // 4))
            candidate = copy.deepcopy(self._average.model)
            self._evaluation = _Evaluation(candidate, self._score(candidate), self._held_out())

    def _evaluate_piece(self, evaluation: _Evaluation) -> None:
        """Counts one sample of the candidate or of what is live, and judges when all are counted."""
        for score in (evaluation.score, self._live):
            missing = [] if score is None else score.missing(evaluation.samples)
            if missing and score is not None:
                score.count(missing[0])
                return
        self._evaluation = None
        candidate = evaluation.score.total(evaluation.samples)
        live = None if self._live is None else self._live.total(evaluation.samples)
        self.held_out_length = candidate.length
        verdict = self.publisher.judge(candidate, live)
        if verdict is Verdict.PUBLISH:
            self._go_live(evaluation.model, evaluation.score, candidate)
        elif verdict is Verdict.ROLL_BACK:
            self._roll_back()
        if self.publisher.has_converged:
            self.abandon()
            self.phase = Phase.CONVERGED
            self._added_at_convergence = self.buffer.num_tokens_added
            self._length_at_convergence = None

    def _go_live(self, model: DrafterModel, score: HeldOutScore, acceptance: Accepted) -> None:
        assert self.trainer is not None
        self.drafter_version += 1
        state = snapshot(self.state_dict())
        counts = self.trainer.num_tokens, self.trainer.num_steps
        self._publish(Publication(model, self.drafter_version, acceptance, *counts, state))
        self._live, self._best = score, state

    def _watch(self) -> bool:
        """Looks for a reason to train again: much new text, or text on which the drafter does worse."""
        new_tokens = self.buffer.num_tokens_added - self._added_at_convergence
        if new_tokens > RENEWED * self.buffer.num_tokens:
            self._go_on()
            return True
        samples = latest(self.buffer.held_out(), self._config.held_out_tokens // 4)
        if self._live is None or not samples:
            return False
        missing = self._live.missing(samples)
        if missing:
            self._live.count(missing[0])
            return True
        length = self._live.total(samples).length
        if self._length_at_convergence is None:  # of the latest text, which is not that of all times
            self._length_at_convergence = length
        if length - 1 < (1 - DRIFT) * (self._length_at_convergence - 1):
            self._go_on()
        return False

    def _go_on(self) -> None:
        self.publisher.start_over()
        if self.trainer is not None:
            self.trainer.restart_schedule()
            self.phase = Phase.TRAINING
            self._next_evaluation = self.trainer.num_tokens + self._config.evaluation_tokens[0]

    def _roll_back(self) -> None:
        """Goes back to what went live last; a drafter that never did is built anew."""
        self._fruitless_steps = 0
        if self._best is None or self.trainer is None or self._average is None:
            self.trainer = None
            return
        self.trainer.load_state_dict(snapshot(self._best["trainer"]))
        self._average.load_state_dict(self._best["average"])
        self.trainer.restart_schedule()
        self._next_evaluation = self.trainer.num_tokens + self._config.evaluation_tokens[0]

    def _held_out(self) -> list[Sample]:
        return spread(self.buffer.held_out(), self._config.held_out_tokens)

    def _score(self, model: DrafterModel) -> HeldOutScore:
        return HeldOutScore(model, self._embed, self._config.depth)
