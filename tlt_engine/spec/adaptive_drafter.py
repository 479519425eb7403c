"""From the choice of a strategy to draft trees, and from what they brought back to the next choice."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from tlt_engine.spec.choice_bias import ChoiceBias
from tlt_engine.spec.cost_model import CostModel, size_class
from tlt_engine.spec.decision_log import Decision, DecisionLog
from tlt_engine.spec.drafter import DraftRequest
from tlt_engine.spec.policies import Choice, Selector
from tlt_engine.spec.step_cost import Candidate, choose_draft_rows, likeliest_rows
from tlt_engine.spec.strategy import NO_SPECULATION, DrafterName, SpecStrategy
from tlt_engine.spec.tree import EMPTY_TREE, ROOT, DraftTree


class StrategyDrafter(Protocol):
    """Drafts as a strategy says."""

    def is_possible(self, strategy: SpecStrategy) -> bool:
        """Returns whether a strategy's drafter can be asked in this step."""

    def propose(self, strategy: SpecStrategy, requests: Sequence[DraftRequest]) -> list[DraftTree]:
        """Returns one valid tree a request, in order."""

    def pass_step(self) -> None:
        """Learns that a step goes by."""


class StepResult(NamedTuple):
    """What the target's step gave."""

    num_reqs: int
    num_emitted: int
    """Tokens of all requests, bonus tokens included."""
    row_context: int
    """Committed tokens of all requests."""
    target_seconds: float
    """Of laying the rows out, the target's pass and sampling."""


@dataclass
class _Pending:
    """A choice whose step is under way."""

    choice: Choice
    num_reqs: int
    num_rows: int
    draft_seconds: float
    expected: dict[str, float]
    """For each request that was drafted for, the sum of its chosen nodes' estimates."""
    accepted: dict[str, int]


@dataclass
class _Seconds:
    """Where the time of decode steps went."""

    draft: float = 0.0
    target: float = 0.0
    other: float = 0.0
    num_steps: int = 0


class AdaptiveDrafter:
    """Chooses, drafts and learns, a step at a time."""

    def __init__(
        self,
        drafters: StrategyDrafter,
        selector: Selector,
        cost_model: CostModel,
        *,
        max_rows: int | None = None,
        log: DecisionLog | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Starts before the first step.

        Args:
            drafters: who drafts.
            selector: who chooses.
            cost_model: what is known of costs; it learns from every step.
            max_rows: most rows of a step over all requests.
            log: where decisions are written.
            clock: of wall time, in seconds.
        """
        self.selector = selector
        self.cost_model = cost_model
        self._drafters = drafters
        self._max_rows = max_rows
        self._log = log
        self._clock = clock
        self._started = clock()
        self._bias = ChoiceBias()
        self._pending: _Pending | None = None
        # A request that a step leaves out has its tree verified in a later one, under another choice.
        self._drafted_by: dict[str, DrafterName] = {}
        self._last_tokens_at: float | None = None
        self._seconds = _Seconds()
        self._steps_by_strategy: dict[str, int] = {}

    def draft(self, requests: Sequence[DraftRequest], *, num_reqs: int, row_context: int) -> list[DraftTree]:
        """Drafts for the next step.

        Args:
            requests: those that may be drafted for.
            num_reqs: requests of the step, those not drafted for included.
            row_context: committed tokens of all of these.

        Returns:
            One valid tree a request, in order; empty where drafting does not pay or failed.
        """
        started = self._clock()
        self._drafters.pass_step()
        choice = self.selector.select(
            num_reqs,
            self._drafters.is_possible,
            lambda strategy: self.cost_model.speedup(strategy, num_reqs, row_context),
        )
        self._pending = _Pending(choice, num_reqs, num_reqs, 0.0, {}, {})
        if not choice.strategy.drafts or not requests:
            self._pending.choice = replace(choice, strategy=NO_SPECULATION) if not requests else choice
            return [EMPTY_TREE] * len(requests)
        trees = self._drafted(choice.strategy, requests, num_reqs, row_context, started)
        self._pending.draft_seconds = self._clock() - started
        self.cost_model.draft_cost.record(choice.strategy, num_reqs, self._pending.draft_seconds)
        return trees

    def observe(self, req_id: str, tree: DraftTree, accepted_nodes: Sequence[int]) -> None:
        """Learns which nodes of a request's verified tree were accepted, in path order."""
        if self._pending is not None:
            self._pending.accepted[req_id] = len(accepted_nodes)
        drafter = self._drafted_by.pop(req_id, None)
        if drafter is not None:
            last = accepted_nodes[-1] if accepted_nodes else ROOT
            self.cost_model.acceptance.record(drafter, len(accepted_nodes), goes_deeper=tree.has_child(last))

    def record_step(self, result: StepResult | None) -> None:
        """Learns what the step under way brought, now that its tokens are there.

        Args:
            result: of the step; None if it computed prompts, too, and so says nothing.
        """
        now = self._clock()
        before, self._last_tokens_at = self._last_tokens_at, now
        pending, self._pending = self._pending, None
        if pending is None:
            return
        outcomes = {
            req_id: (expected, pending.accepted.get(req_id, 0)) for req_id, expected in pending.expected.items()
        }
        if outcomes:
            self._bias.record(_group(pending.choice.strategy, pending.num_reqs), outcomes)
        if result is None or before is None or result.num_reqs != pending.num_reqs:
            return
        seconds = now - before
        other = seconds - pending.draft_seconds - result.target_seconds
        self.cost_model.record_other(other)
        plain = self.cost_model.plain_seconds(result.num_reqs, result.row_context)
        self.selector.record(result.num_reqs, pending.choice, result.num_emitted / result.num_reqs * plain, seconds)
        name = pending.choice.strategy.name
        self._steps_by_strategy[name] = self._steps_by_strategy.get(name, 0) + 1
        self._seconds.draft += pending.draft_seconds
        self._seconds.target += result.target_seconds
        self._seconds.other += max(0.0, other)
        self._seconds.num_steps += 1
        if self._log is not None:
            self._log.write(
                Decision(
                    seconds_since_start=round(now - self._started, 4),
                    batch_size=result.num_reqs,
                    strategy=name,
                    is_exploration=pending.choice.is_exploration,
                    draft_rows=pending.num_rows - pending.num_reqs,
                    num_accepted=sum(pending.accepted.values()),
                    seconds=round(seconds, 6),
                    draft_seconds=round(pending.draft_seconds, 6),
                    target_seconds=round(result.target_seconds, 6),
                    plain_seconds=round(plain, 6),
                )
            )

    def finish(self, req_id: str) -> None:
        """Forgets a request."""
        self._bias.finish(req_id)
        self._drafted_by.pop(req_id, None)

    def forget(self, drafters: Sequence[DrafterName], num_kept: int) -> None:
        """Learns that drafters have other weights, or another target; see ``Selector.forget``."""
        self.selector.forget(drafters, num_kept)
        self.cost_model.acceptance.forget(drafters)

    @property
    def strategy_under_way(self) -> SpecStrategy:
        """What was chosen for the step that comes next."""
        return self._pending.choice.strategy if self._pending is not None else NO_SPECULATION

    @property
    def draft_seconds(self) -> float:
        """Seconds spent drafting for decode steps."""
        return self._seconds.draft

    def snapshot(self) -> dict[str, Any]:
        """Returns plain data for ``/tlt/status``."""
        return {
            **self.selector.snapshot(),
            "steps": dict(self._steps_by_strategy),
            "acceptance_rates": self.cost_model.acceptance.snapshot(),
            "seconds": {
                "draft": self._seconds.draft,
                "target": self._seconds.target,
                "other": self._seconds.other,
                "steps": self._seconds.num_steps,
            },
        }

    def _drafted(
        self, strategy: SpecStrategy, requests: Sequence[DraftRequest], num_reqs: int, row_context: int, started: float
    ) -> list[DraftTree]:
        assert self._pending is not None
        most_nodes = strategy.verify_width - 1
        narrowed = [
            request if request.max_nodes <= most_nodes else replace(request, max_nodes=most_nodes)
            for request in requests
        ]
        trees = self._drafters.propose(strategy, narrowed)
        group = _group(strategy, num_reqs)
        candidates = [
            Candidate(tree, len(request.token_ids), self._bias.discount(group, request.req_id))
            for tree, request in zip(trees, requests, strict=True)
        ]
        if self.selector.cuts_to_cost:
            other_seconds = 0.0
            if self.cost_model.step_cost.is_measured:
                other_seconds = self.cost_model.other_seconds + self._clock() - started
            chosen = choose_draft_rows(
                candidates,
                self.cost_model.step_cost,
                num_reqs=num_reqs,
                row_context=row_context,
                max_rows=self._max_rows,
                other_seconds=other_seconds,
            )
        else:
            chosen = likeliest_rows(candidates, num_reqs=num_reqs, max_rows=self._max_rows)
        self._pending.expected = {
            request.req_id: expected for request, expected in zip(requests, chosen.expected_accepted, strict=True)
        }
        self._pending.num_rows += sum(map(len, chosen.trees))
        self._drafted_by.update(
            (request.req_id, strategy.drafter)
            for request, tree in zip(requests, chosen.trees, strict=True)
            if len(tree)
        )
        return chosen.trees


def _group(strategy: SpecStrategy, num_reqs: int) -> tuple[SpecStrategy, int]:
    return strategy, size_class(num_reqs)
