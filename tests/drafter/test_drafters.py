"""One drafter that fails is left alone, longer each time, and the others go on."""

import logging

import numpy as np
import pytest

from tlt_engine.config import PromptLookupConfig
from tlt_engine.drafter.drafters import Drafters
from tlt_engine.spec.collapse_alarm import RECENT
from tlt_engine.spec.drafter import DraftRequest, FinishReason
from tlt_engine.spec.guard import FIRST_PAUSE_STEPS, LONGEST_PAUSE_STEPS, Guard
from tlt_engine.spec.prompt_lookup import PromptLookup
from tlt_engine.spec.strategy import NO_SPECULATION, SpecStrategy
from tlt_engine.spec.tree import EMPTY_TREE, ROOT, DraftTree
from worker.fake_drafters import FakeDrafter, Raising

VOCAB = 100
NGRAM = SpecStrategy(drafter="ngram", verify_width=8)
BOTH = SpecStrategy(drafter="both", draft_depth=2, top_k=2, verify_width=8)
LEARNED = SpecStrategy(drafter="learned", draft_depth=2, top_k=2, verify_width=7)
OWN = SpecStrategy(drafter="own", verify_width=8)


class Network(FakeDrafter):
    """As much of ``LearnedDrafter`` as is asked, with a tree of its own or a fault."""

    def __init__(self, has_weights=True):
        self.runtime = self
        self.has_weights = has_weights
        self.fault = None
        self.finished = []

    def propose(self, requests, strategy=None):
        if self.fault is not None:
            raise self.fault
        return [DraftTree([90, 91], [ROOT, 0], [0.9, 0.8], ["learned"] * 2) for _ in requests]

    def finish(self, req_id, reason):
        self.finished.append(req_id)


def request(*, is_chain_only=False, max_nodes=15, max_depth=9):
    ids = np.array([*range(10, 20), *range(10, 20), *range(10, 15)], np.int32)
    return DraftRequest("a", ids, 5, max_nodes, None, max_depth, is_chain_only=is_chain_only)


@pytest.fixture
def drafters():
    found = Drafters(VOCAB, lookup=PromptLookup(PromptLookupConfig()))
    found.network = Network()
    found.add_network(found.network)
    return found


def test_strategies_name_who_is_there():
    assert Drafters(VOCAB).names == ("none",)
    assert Drafters(VOCAB, own=FakeDrafter()).names == ("none", "own")
    lookup = Drafters(VOCAB, lookup=PromptLookup(PromptLookupConfig()))
    assert lookup.names == ("none", "ngram")
    lookup.add_network(Network(has_weights=False))
    assert lookup.names == ("none", "ngram", "learned", "both")
    assert lookup.is_possible(NGRAM) and lookup.is_possible(NO_SPECULATION)
    assert not lookup.is_possible(BOTH), "there are no weights yet"


def test_each_strategy_asks_whom_it_names(drafters):
    def sources(strategy):
        return set(drafters.propose(strategy, [request()])[0].sources)

    assert sources(LEARNED) == {"learned"}
    assert "learned" not in sources(NGRAM)
    assert "learned" in sources(BOTH) and len(sources(BOTH)) > 1
    assert drafters.propose(NO_SPECULATION, [request()]) == [EMPTY_TREE]


def test_look_up_goes_on_without_the_network(drafters, caplog):
    drafters.network.fault = RuntimeError("on purpose")
    with caplog.at_level(logging.WARNING):
        (tree,) = drafters.propose(BOTH, [request()])
    assert tree.token_ids[0] == 15
    assert drafters.num_failures == 1
    assert "network" in caplog.text and "on purpose" in caplog.text
    assert not drafters.is_possible(BOTH)
    assert not drafters.is_possible(LEARNED)
    assert drafters.is_possible(NGRAM)
    for _ in range(FIRST_PAUSE_STEPS):
        drafters.pass_step()
    assert drafters.is_possible(BOTH)
    drafters.propose(BOTH, [request()])
    drafters.expect(None)
    assert drafters.is_possible(BOTH), "new weights get a chance at once"


def test_the_network_goes_on_without_look_up(drafters, monkeypatch):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(drafters._lookup, "propose", fail)
    assert drafters.propose(BOTH, [request()])[0].sources == ["learned"] * 2
    assert not drafters.is_possible(NGRAM)


@pytest.mark.parametrize(
    "tree", [DraftTree([VOCAB], [ROOT]), DraftTree([-1], [ROOT]), DraftTree([1, 2], [1, ROOT]), DraftTree([1], [])]
)
def test_what_is_no_draft_is_a_failure_and_never_verified(tree):
    class Own(FakeDrafter):
        def tree(self, request):
            return tree

    drafters = Drafters(VOCAB, own=Own())
    assert drafters.propose(OWN, [request()]) == [EMPTY_TREE]
    assert drafters.num_failures == 1


def test_trees_are_cut_to_what_a_request_may_have():
    class Own(FakeDrafter):
        def tree(self, request):
            return DraftTree([1, 2, 3, 4], [ROOT, 0, 1, ROOT], [0.3, 0.2, 0.1, 0.5])

    drafters = Drafters(VOCAB, own=Own())

    def drafted(**limits):
        return drafters.propose(OWN, [request(**limits)])[0].token_ids

    assert drafted() == [1, 2, 3, 4]
    assert drafted(max_nodes=2) == [1, 2]
    assert drafted(max_depth=1) == [1, 4]
    assert drafted(is_chain_only=True) == [4]
    assert drafted(max_nodes=0) == []


def test_whatever_a_drafter_raises_costs_drafts_only():
    drafters = Drafters(VOCAB, own=Raising())
    drafters.observe("a", EMPTY_TREE, [])
    drafters.finish("a", FinishReason.COMPLETED)
    assert drafters.num_failures == 2
    assert not drafters.is_possible(OWN)
    assert drafters.propose(OWN, [request()]) == [EMPTY_TREE]


def test_everybody_hears_of_requests_that_end(drafters):
    drafters.propose(NGRAM, [request()])
    drafters.finish("a", FinishReason.COMPLETED)
    assert drafters.network.finished == ["a"]


def test_a_collapsed_network_is_left_alone_and_said_once(drafters, caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(5 * RECENT):
            drafters.score_guess(True)
        for _ in range(RECENT):
            drafters.score_guess(False)
    assert caplog.text.count("collapsed") == 1
    assert not drafters.is_possible(BOTH)
    assert drafters.is_possible(NGRAM)
    drafters.expect(0.5)
    assert drafters.is_possible(BOTH)


def test_pauses_grow_and_end():
    guard = Guard()
    told, pauses = [], []
    for _ in range(10):
        told.append(guard.fail())
        pauses.append(0)
        while not guard.is_open:
            guard.pass_step()
            pauses[-1] += 1
    assert told == [FIRST_PAUSE_STEPS, *[None] * 9]
    assert pauses[:3] == [FIRST_PAUSE_STEPS, 2 * FIRST_PAUSE_STEPS, 4 * FIRST_PAUSE_STEPS]
    assert pauses[-1] == LONGEST_PAUSE_STEPS
    guard.succeed()
    assert guard.fail() == FIRST_PAUSE_STEPS
