"""Predictions say what acceptance and costs say; measurements replace first guesses."""

import pytest

from tlt_engine.spec.cost_model import AcceptanceByDepth, CostModel, DraftCost, size_class
from tlt_engine.spec.step_cost import StepCost
from tlt_engine.spec.strategy import NO_SPECULATION, SpecStrategy

CHAIN = SpecStrategy(drafter="learned", draft_depth=3, top_k=1, verify_width=4)
NGRAM = SpecStrategy(drafter="ngram", verify_width=8)
BOTH = SpecStrategy(drafter="both", draft_depth=3, top_k=2, verify_width=8)


def model(seconds_by_rows, *, other=0.0):
    step_cost = StepCost()
    step_cost.set_profile(seconds_by_rows)
    for _ in range(40):
        step_cost.record(1, 0, seconds_by_rows[1])
    found = CostModel(step_cost)
    for _ in range(40):
        found.record_other(other)
    return found


def accept(acceptance, drafter, rate, times=2000, depth=8):
    for number in range(times):
        wins = 0
        while wins < depth and ((number * 7919 + wins * 104_729) % 1000) < 1000 * rate:
            wins += 1
        acceptance.record(drafter, wins, goes_deeper=wins < depth)


def test_size_classes_keep_small_batches_apart():
    assert len({size_class(size) for size in (1, 2, 3, 4)}) == 4
    assert size_class(12) == size_class(11) != size_class(32)
    assert size_class(0) == size_class(1)


def test_prediction_is_tokens_over_seconds():
    found = model({1: 0.03, 4: 0.036, 8: 0.05}, other=0.004)
    accept(found.acceptance, "learned", 0.5)
    found.draft_cost.record(CHAIN, 1, 0.005)
    expected = (1 + 0.5 + 0.25 + 0.125) * (0.03 + 0.004) / (0.036 + 0.004 + 0.005)
    assert found.speedup(CHAIN, 1) == pytest.approx(expected, rel=0.05)
    assert found.speedup(NO_SPECULATION, 1) == 1.0


def test_rows_that_do_not_pay_are_not_counted_on():
    """Every row costs as much as the first: drafting only costs its own seconds."""
    found = model({1: 0.03, 64: 64 * 0.03})
    accept(found.acceptance, "ngram", 0.5)
    found.draft_cost.record(NGRAM, 4, 0.012)
    assert found.speedup(NGRAM, 4) == pytest.approx(0.12 / 0.132, rel=0.03)


def test_before_a_step_was_measured_seconds_compare_with_nothing():
    found = CostModel(StepCost())
    found.draft_cost.record(NGRAM, 1, 5.0)
    assert found.speedup(NGRAM, 1) > 1.0


def test_acceptance_is_learnt_by_depth_and_starts_where_training_left():
    acceptance = AcceptanceByDepth()
    acceptance.expect("learned", (0.8, 0.6))
    assert [acceptance.rate("learned", depth) for depth in (0, 1, 5)] == pytest.approx([0.8, 0.6, 0.6])
    for _ in range(300):
        acceptance.record("learned", 1, goes_deeper=True)  # the first always, the second never
    assert acceptance.rate("learned", 0) > 0.95
    assert acceptance.rate("learned", 1) < 0.05
    assert acceptance.rate("learned", 2) == pytest.approx(0.6), "it was never reached"
    acceptance.record("learned", 3, goes_deeper=False)
    assert acceptance.rate("learned", 3) == pytest.approx(0.6), "nothing was drafted there"
    assert acceptance.snapshot().keys() == {"learned"}
    acceptance.forget(["learned"])
    for _ in range(20):
        acceptance.record("learned", 2, goes_deeper=False)
    assert acceptance.rate("learned", 1) > 0.5, "after a change what comes counts for more"


def test_draft_cost_is_measured_or_that_of_the_nearest_batch_or_estimated():
    cost = DraftCost()
    assert cost.predict(NO_SPECULATION, 8) == 0.0
    assert 0 < cost.predict(NGRAM, 1) < cost.predict(NGRAM, 32) < 0.02
    cost.set_passes({1: (0.004, 0.002), 16: (0.016, 0.008)})
    assert cost.predict(CHAIN, 1) == pytest.approx(0.004 + 2 * 0.002)
    assert cost.predict(CHAIN, 16) == pytest.approx(0.016 + 2 * 0.008)
    assert cost.predict(CHAIN, 32) == pytest.approx(2 * (0.016 + 2 * 0.008))
    assert cost.predict(BOTH, 1) > cost.predict(CHAIN, 1), "look-up comes on top"
    for _ in range(50):
        cost.record(CHAIN, 4, 0.010)
    assert cost.predict(CHAIN, 4) == pytest.approx(0.010)
    assert 0.010 < cost.predict(CHAIN, 8) < 0.020
    cost.record(CHAIN, 4, 100.0)
    assert cost.predict(CHAIN, 4) < 0.015, "one slow search says little"


def test_what_a_step_takes_besides_is_followed():
    found = model({1: 0.03, 8: 0.05}, other=0.004)
    assert found.other_seconds == pytest.approx(0.004)
    found.record_other(9.0)
    assert found.other_seconds < 0.006
    assert found.plain_seconds(1, 0) == pytest.approx(0.03 + found.other_seconds, rel=0.02)
