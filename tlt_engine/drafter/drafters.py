"""The drafters of one engine by what strategies name; one that fails is left alone, the others go on."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from tlt_engine.drafter.learned import LearnedDrafter
from tlt_engine.spec.collapse_alarm import CollapseAlarm
from tlt_engine.spec.drafter import Drafter, DraftRequest, FinishReason
from tlt_engine.spec.guard import Guard
from tlt_engine.spec.prompt_lookup import PromptLookup
from tlt_engine.spec.strategy import DrafterName, SpecStrategy
from tlt_engine.spec.tree import EMPTY_TREE, DraftTree

logger = logging.getLogger(f"vllm.{__name__}")


class Drafters:
    """Look-up, the network and the user's own class, as far as there are any, each behind a guard of its own."""

    def __init__(self, vocab_size: int, *, lookup: PromptLookup | None = None, own: Drafter | None = None) -> None:
        """Starts without a network.

        Args:
            vocab_size: of the target; drafts beyond it are faults.
            lookup: the model-free drafter.
            own: the user's drafter.
        """
        self.alarm = CollapseAlarm()
        self._vocab_size = vocab_size
        self._lookup = lookup
        self._own = own
        self._network: LearnedDrafter | None = None
        self._guards: dict[str, Guard] = {"lookup": Guard(), "network": Guard(), "own": Guard()}

    def add_network(self, network: LearnedDrafter) -> None:
        """Adds the learned drafter, with weights or still without."""
        self._network = network

    @property
    def names(self) -> tuple[DrafterName, ...]:
        """What a strategy may name, ``none`` included."""
        found: list[DrafterName] = ["none"]
        found += ["ngram"] if self._lookup is not None else []
        found += ["learned"] if self._network is not None else []
        found += ["both"] if self._network is not None and self._lookup is not None else []
        return tuple(found + (["own"] if self._own is not None else []))

    @property
    def num_failures(self) -> int:
        """Failures of all of them."""
        return sum(guard.num_failures for guard in self._guards.values())

    def is_possible(self, strategy: SpecStrategy) -> bool:
        """Returns whether a strategy's drafter can be asked in this step."""
        if strategy.drafter == "ngram":
            return self._lookup is not None and self._guards["lookup"].is_open
        if strategy.drafter in ("learned", "both"):
            return self._network is not None and self._network.runtime.has_weights and self._may_ask_network()
        return strategy.drafter == "none" or self._guards["own"].is_open

    def propose(self, strategy: SpecStrategy, requests: Sequence[DraftRequest]) -> list[DraftTree]:
        """Drafts for a step.

        Args:
            strategy: who drafts, and how deep.
            requests: what to draft for.

        Returns:
            One valid tree a request, in order, within its limits; empty where the drafter failed.
        """
        trees: list[DraftTree] | None = None
        if strategy.drafter in ("learned", "both"):
            assert self._network is not None
            network = self._network
            trees = self._ask("network", requests, lambda: network.propose(requests, strategy))
        if strategy.drafter in ("ngram", "both"):
            assert self._lookup is not None
            lookup, learned = self._lookup, trees
            united = self._ask("lookup", requests, lambda: lookup.propose(requests, learned))
            trees = united if united is not None else trees
        if strategy.drafter == "own":
            assert self._own is not None
            own = self._own
            trees = self._ask("own", requests, lambda: own.propose(requests))
        return trees if trees is not None else [EMPTY_TREE] * len(requests)

    def pass_step(self) -> None:
        """Lets a step of all pauses go by."""
        self.alarm.pass_step()
        for guard in self._guards.values():
            guard.pass_step()

    def expect(self, first_rate: float | None) -> None:
        """Learns that the network has other weights, and what their likeliest next token was worth in training."""
        self.alarm.expect(first_rate)
        self._guards["network"].reset()

    def score_guess(self, came_true: bool) -> None:
        """Learns whether the network's likeliest next token was emitted."""
        message = self.alarm.record(came_true=came_true)
        if message is not None:
            logger.warning("The learned drafter collapsed: %s", message)

    def observe(self, req_id: str, tree: DraftTree, accepted_nodes: Sequence[int]) -> None:
        """Tells the user's drafter what became of a verified tree; the others learn from what is emitted."""
        if self._own is not None:
            self._tell("own", "observe", self._own.observe, req_id, tree, accepted_nodes)

    def finish(self, req_id: str, reason: FinishReason) -> None:
        """Tells all that a request will not come back."""
        for name, drafter in self._all():
            self._tell(name, "finish", drafter.finish, req_id, reason)

    def set_target_version(self, target_version: int) -> None:
        """Tells all that the target's weights changed."""
        for name, drafter in self._all():
            self._tell(name, "set_target_version", drafter.set_target_version, target_version)

    def num_bytes(self) -> dict[str, tuple[int, int]]:
        """Returns the bytes in use and the cap of each buffer of all of them."""
        return {name: size for _, drafter in self._all() for name, size in drafter.num_bytes().items()}

    def fail(self, name: str, what: str, error: Exception) -> None:
        """Notes a failure of one of them and, if it is the first in a row, says so."""
        pause = self._guards[name].fail()
        if pause is not None:
            logger.warning(
                "The drafter (%s) failed in %s and is left alone for %d steps, longer if it fails again; serving goes "
                "on: %r",
                name,
                what,
                pause,
                error,
            )

    def _may_ask_network(self) -> bool:
        return self._guards["network"].is_open and self.alarm.allows

    def _all(self) -> list[tuple[str, Drafter]]:
        pairs: list[tuple[str, Drafter | None]] = [
            ("network", self._network),
            ("lookup", self._lookup),
            ("own", self._own),
        ]
        return [(name, drafter) for name, drafter in pairs if drafter is not None]

    def _ask(
        self, name: str, requests: Sequence[DraftRequest], propose: Callable[[], list[DraftTree]]
    ) -> list[DraftTree] | None:
        """Returns valid trees, or None if it may not be asked or failed."""
        if not self._guards[name].is_open:
            return None
        try:
            trees = [self._fit(tree, request) for tree, request in zip(propose(), requests, strict=True)]
        except Exception as error:  # noqa: BLE001 - a drafter may be the user's own; whatever it raises, serving goes on
            self.fail(name, "propose", error)
            return None
        self._guards[name].succeed()
        return trees

    def _tell(self, name: str, what: str, call: Callable[..., object], *args: Any) -> None:
        try:
            call(*args)
        except Exception as error:  # noqa: BLE001 - as above
            self.fail(name, what, error)

    def _fit(self, tree: DraftTree, request: DraftRequest) -> DraftTree:
        problem = tree.problem(self._vocab_size)
        if problem is not None:
            raise ValueError(f"draft for request {request.req_id}: {problem}")
        if request.is_chain_only:
            tree = tree.likeliest_chain()
        return tree.within(request.max_nodes, request.max_depth)
