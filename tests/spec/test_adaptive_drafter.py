"""Each choice is credited with what its own step brought, from token to token, and nothing else is."""

import json

import numpy as np
import pytest

from tlt_engine.spec.adaptive_drafter import AdaptiveDrafter, StepResult
from tlt_engine.spec.cost_model import CostModel
from tlt_engine.spec.decision_log import DecisionLog, read_decisions
from tlt_engine.spec.drafter import DraftRequest
from tlt_engine.spec.policies import Choice
from tlt_engine.spec.step_cost import StepCost
from tlt_engine.spec.strategy import NO_SPECULATION, SpecStrategy
from tlt_engine.spec.tree import EMPTY_TREE, ROOT, DraftTree

NGRAM = SpecStrategy(drafter="ngram", verify_width=4)
TREE = DraftTree([5, 6, 7, 8], [ROOT, 0, 1, ROOT], [0.9, 0.8, 0.7, 0.05])
PLAIN_S, OTHER_S = 0.030, 0.004


class Scripted:
    """A policy that does as it is told and notes what it hears."""

    def __init__(self, *strategies, cuts_to_cost=True):
        self.cuts_to_cost = cuts_to_cost
        self.strategies = list(strategies)
        self.heard = []

    def select(self, batch_size, is_possible, predict):
        assert predict(NO_SPECULATION) == 1.0
        return Choice(self.strategies.pop(0))

    def record(self, batch_size, choice, plain_seconds, seconds):
        self.heard.append((batch_size, choice.strategy, plain_seconds, seconds))

    def forget(self, drafters, num_kept):
        self.heard.append((tuple(drafters), num_kept))

    def snapshot(self):
        return {}


class Engine:
    """Steps of an engine on a clock of its own."""

    def __init__(self, *strategies, draft_seconds=0.002, log=None, cuts_to_cost=True, tree=TREE, max_rows=None):
        self.now, self.draft_seconds, self.tree = 0.0, draft_seconds, tree
        self.selector = Scripted(*strategies, cuts_to_cost=cuts_to_cost)
        step_cost = StepCost()
        step_cost.set_profile({1: PLAIN_S, 64: PLAIN_S})
        for _ in range(30):
            step_cost.record(1, 0, PLAIN_S)
        self.asked = []
        self.drafter = AdaptiveDrafter(
            self, self.selector, CostModel(step_cost), max_rows=max_rows, log=log, clock=lambda: self.now
        )

    def is_possible(self, strategy):
        return True

    def pass_step(self):
        pass

    def propose(self, strategy, requests):
        self.now += self.draft_seconds
        self.asked.append((strategy, [request.max_nodes for request in requests]))
        return [self.tree.within(request.max_nodes, 9) for request in requests]

    def draft(self, names="a", num_reqs=None):
        requests = [DraftRequest(name, np.zeros(10, np.int32), 5, 15, None, 9) for name in names]
        return self.drafter.draft(requests, num_reqs=num_reqs or len(names), row_context=0)

    def finish_step(self, *, num_reqs=1, num_emitted=1, seconds=PLAIN_S + OTHER_S, is_decode=True):
        self.now += seconds
        self.drafter.record_step(StepResult(num_reqs, num_emitted, 0, PLAIN_S) if is_decode else None)


def test_a_step_is_credited_with_its_tokens_and_its_time():
    engine = Engine(NGRAM, NO_SPECULATION, NGRAM)
    engine.finish_step()  # tokens of a prompt: a choice begins with them
    (tree,) = engine.draft()
    assert tree.token_ids == [5, 6, 7]
    engine.drafter.observe("a", tree, [0, 1])
    engine.finish_step(num_emitted=3)
    assert engine.draft() == [EMPTY_TREE]
    engine.finish_step()
    (_, first, worth, seconds), (_, second, plain_worth, plain_seconds) = engine.selector.heard
    assert (first, second) == (NGRAM, NO_SPECULATION)
    assert seconds == pytest.approx(PLAIN_S + OTHER_S + 0.002), "drafting is part of it"
    assert worth == pytest.approx(3 * (PLAIN_S + OTHER_S), rel=0.01)
    assert plain_seconds == pytest.approx(PLAIN_S + OTHER_S)
    assert plain_worth == pytest.approx(PLAIN_S + OTHER_S, rel=0.01)
    assert engine.drafter.draft_seconds == pytest.approx(0.002)
    snapshot = engine.drafter.snapshot()
    assert snapshot["steps"] == {"ngram-w4": 1, "none": 1}
    assert snapshot["seconds"] == pytest.approx({"draft": 0.002, "target": 0.06, "other": 0.008, "steps": 2})
    assert snapshot["acceptance_rates"]["ngram"] == pytest.approx([(1 + 8 * 0.35) / 9, (1 + 8 * 0.5) / 9, 8 * 0.6 / 9])


@pytest.mark.parametrize("interruption", ["prefill", "other size"])
def test_steps_that_are_no_plain_decodes_teach_nothing(interruption):
    engine = Engine(NGRAM, NGRAM)
    engine.finish_step()
    engine.draft()
    if interruption == "prefill":
        engine.finish_step(is_decode=False, seconds=5.0)
    else:
        engine.finish_step(num_reqs=2, num_emitted=2)
    assert engine.selector.heard == []
    engine.draft()
    engine.finish_step()
    assert [seconds for *_, seconds in engine.selector.heard] == [pytest.approx(PLAIN_S + OTHER_S + 0.002)]


def test_a_strategy_limits_the_rows_of_a_request():
    engine = Engine(NGRAM, cuts_to_cost=False)
    assert [len(tree) for tree in engine.draft("ab")] == [3, 3]
    assert engine.asked == [(NGRAM, [3, 3])]


def test_a_policy_that_does_not_cut_keeps_unlikely_rows_and_the_cap_holds():
    unlikely = DraftTree([5, 6], [ROOT, 0], [1e-6, 1e-7])
    for cuts_to_cost, kept in ((False, [2, 2]), (True, [0, 0])):
        engine = Engine(NGRAM, cuts_to_cost=cuts_to_cost, tree=unlikely)
        engine.drafter.cost_model.step_cost.set_profile({1: 0.03, 64: 64 * 0.03})
        assert [len(tree) for tree in engine.draft("ab")] == kept
    capped = Engine(NGRAM, cuts_to_cost=False, max_rows=3).draft("ab")
    assert sum(map(len, capped)) == 1


def test_a_request_whose_drafts_fail_gets_fewer_rows_than_its_neighbour():
    engine = Engine(*[NGRAM] * 60)
    engine.drafter.cost_model.step_cost.set_profile({1: 0.030, 2: 0.030, 3: 0.036, 4: 0.042, 5: 0.048, 8: 0.066})
    for _ in range(30):
        engine.drafter.cost_model.step_cost.record(2, 0, 0.030)
    for _ in range(59):
        good, bad = engine.draft("gb")
        engine.drafter.observe("g", good, list(range(len(good))))
        engine.drafter.observe("b", bad, [])
        engine.finish_step(num_reqs=2, num_emitted=2 + len(good))
    good, bad = engine.draft("gb")
    assert len(good) > len(bad)
    engine.drafter.finish("b")
    assert "b" not in engine.drafter._bias._of_request


def test_a_tree_that_waits_is_still_its_drafters():
    """A request that a step leaves out has its drafts verified in a later one, whatever that one chose."""
    engine = Engine(NGRAM, NO_SPECULATION)
    engine.finish_step()
    (tree,) = engine.draft()
    engine.finish_step(is_decode=False)
    engine.draft()
    engine.drafter.observe("a", tree, [0, 1, 2])
    engine.finish_step()
    assert list(engine.drafter.snapshot()["acceptance_rates"]) == ["ngram"]


def test_nobody_to_draft_for_is_a_plain_step():
    engine = Engine(NGRAM)
    engine.finish_step()
    assert engine.drafter.draft([], num_reqs=3, row_context=0) == []
    engine.finish_step(num_reqs=3, num_emitted=3)
    assert engine.selector.heard[0][:2] == (3, NO_SPECULATION)
    assert engine.asked == []


def test_other_weights_are_told_to_all_who_learnt_of_the_old_ones():
    engine = Engine()
    engine.drafter.forget(["both"], 4)
    assert engine.selector.heard == [(("both",), 4)]


def test_decisions_are_logged_and_read_back(tmp_path):
    path = tmp_path / "decisions.jsonl"
    engine = Engine(NGRAM, NO_SPECULATION, log=DecisionLog(path))
    engine.finish_step()
    (tree,) = engine.draft()
    engine.drafter.observe("a", tree, [0])
    engine.finish_step(num_emitted=2)
    engine.draft()
    engine.finish_step()
    first, second = read_decisions(path)
    assert (first.strategy, first.draft_rows, first.num_accepted, first.batch_size) == ("ngram-w4", 3, 1, 1)
    assert second.strategy == "none"
    assert first.seconds == pytest.approx(0.036)
    with path.open("a") as file:
        file.write('{"seconds_since_start": 1.0, "batch')
    assert len(read_decisions(path)) == 2, "an engine that was killed leaves half a line"
    path.write_text(json.dumps({"x": 1}) + "\n" + path.read_text())
    with pytest.raises(ValueError, match="line 1: no decision of a step"):
        read_decisions(path)


def test_the_log_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("tlt_engine.spec.decision_log.MAX_BYTES", 3000)
    path = tmp_path / "decisions.jsonl"
    engine = Engine(*[NO_SPECULATION] * 100, log=DecisionLog(path))
    engine.finish_step()
    for _ in range(100):
        engine.draft()
        engine.finish_step()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 6000
    assert len(list(tmp_path.iterdir())) == 2
    assert 10 < len(read_decisions(path)) < 100


def test_a_log_that_cannot_be_written_is_refused_at_the_start(tmp_path):
    with pytest.raises(ValueError, match="adaptive.decision_log: cannot write"):
        DecisionLog(tmp_path / "nowhere" / "decisions.jsonl")
