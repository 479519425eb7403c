"""Chosen drafts are discounted by what became of them: by group of steps, and by request beyond that."""

import pytest

from tlt_engine.spec.choice_bias import ChoiceBias


def run(bias, steps, *, expected, accepted, group="g", req_id="a"):
    for _ in range(steps):
        bias.record(group, {req_id: (expected, accepted)})


def test_drafts_that_are_worth_half_their_estimates_count_half():
    bias = ChoiceBias()
    assert bias.discount("g", "new") == 1.0
    run(bias, 200, expected=2.0, accepted=1)
    assert bias.discount("g", "new") == pytest.approx(0.5, abs=0.05)
    assert bias.discount("other", "new") == 1.0, "another group has its own"
    run(bias, 600, expected=1.0, accepted=2)
    assert bias.discount("g", "new") == 1.0


def test_discount_under_which_nothing_is_chosen_wears_off():
    bias = ChoiceBias()
    run(bias, 300, expected=5.0, accepted=0)
    assert bias.discount("g", "new") < 0.02
    run(bias, 600, expected=0.0, accepted=0)
    assert bias.discount("g", "new") > 0.7


def test_a_request_whose_drafts_keep_failing_gets_fewer():
    bias = ChoiceBias()
    for _ in range(50):
        bias.record("g", {"good": (1.0, 1), "bad": (1.0, 0), "fine": (1.0, 1)})
    assert bias.discount("g", "bad") < 0.4 * bias.discount("g", "good")
    assert bias.discount("g", "good") == pytest.approx(0.9, abs=0.1), "what a group lacks, a good request makes good"
    bias.finish("bad")
    assert bias.discount("g", "bad") == bias.discount("g", "new")


def test_a_request_is_forgiven_soon():
    bias = ChoiceBias()
    for step in range(120):
        bias.record("g", {"a": (1.0, int(step >= 60)), **{str(number): (1.0, 1) for number in range(10)}})
        if step == 59:
            worst = bias.discount("g", "a")
    assert worst < 0.35
    assert bias.discount("g", "a") > 0.9
