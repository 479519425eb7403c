"""Strategies that contradict themselves or do not fit the engine are refused by name; the default set fits it."""

import pytest

from tlt_engine.config import TltConfig
from tlt_engine.spec.policies import FixedStrategy, StrategyTable
from tlt_engine.spec.policy_factory import build_selector
from tlt_engine.spec.selector import BegSelector, ThompsonSelector
from tlt_engine.spec.strategy import NO_SPECULATION, Capacity, SpecStrategy, default_strategies


def build(drafter="auto", **adaptive):
    return build_selector(TltConfig.from_user({"drafter": drafter, "adaptive": adaptive}))


def capacity(*drafters, max_nodes=15, max_depth=4, max_top_k=4):
    return Capacity(drafters=("none", *drafters), max_nodes=max_nodes, max_depth=max_depth, max_top_k=max_top_k)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"drafter": "eagle", "verify_width": 4}, "drafter: expected one of .*'both'.*, got 'eagle'"),
        ({"drafter": "none", "verify_width": 2}, "verify_width=2 with drafter 'none'"),
        ({"drafter": "ngram"}, "verify_width=1 with drafter 'ngram'"),
        ({"drafter": "ngram", "draft_depth": 2, "verify_width": 4}, "draft_depth=2 with drafter 'ngram'"),
        ({"drafter": "learned", "draft_depth": 2, "verify_width": 3}, "top_k=0 with drafter 'learned'"),
        (
            {"drafter": "learned", "draft_depth": 2, "top_k": 1, "verify_width": 4},
            "so at most 3",
        ),
    ],
)
def test_a_strategy_that_contradicts_itself_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        SpecStrategy(**fields)


@pytest.mark.parametrize(
    ("drafter", "adaptive", "message"),
    [
        ("ngram", {"strategies": [{"drafter": "both"}]}, r"strategies\[0\].drafter: 'both' is not to be had .*'ngram'"),
        ("auto", {"strategies": [{"drafter": "own"}]}, r"strategies\[0\].drafter: 'own' is not"),
        (
            "auto",
            {"strategies": [{"drafter": "learned", "draft_depth": 5}]},
            r"draft_depth: 5 is more than the 4",
        ),
        (
            "auto",
            {"strategies": [{"drafter": "ngram", "verify_width": 17}]},
            r"verify_width: 17 is more than the 16",
        ),
        (
            "auto",
            {"strategies": [{"drafter": "none"}, {"drafter": "ngram", "top_k": 2}]},
            r"\[1\]: top_k=2 with",
        ),
        ("auto", {"strategies": [{"drafter": "ngram"}] * 2}, "the same one twice"),
        ("auto", {"strategies": []}, "the list is empty"),
        ("auto", {"policy": "fixed", "strategies": [{"drafter": "ngram"}, {"drafter": "none"}]}, "'fixed' takes one"),
        ("auto", {"policy": "table"}, "adaptive.table: it belongs to adaptive.policy 'table'"),
        ("auto", {"table": [[1, 4, 3]]}, "adaptive.table: it belongs to adaptive.policy 'table'"),
        ("auto", {"policy": "table", "table": []}, "it is empty"),
        ("auto", {"policy": "table", "table": [[2, 4, 3]]}, "the first one starts at batch size 1"),
        ("auto", {"policy": "table", "table": [[1, 4, 3], [4, 8, 1]]}, r"range \[4, 8, 1\]: ranges ascend"),
        ("auto", {"policy": "table", "table": [[1, 4, 16]]}, "between 0 and num_speculative_tokens=15"),
    ],
)
def test_what_is_not_possible_is_refused_by_name(drafter, adaptive, message):
    with pytest.raises(ValueError, match=message):
        build(drafter, **adaptive)


@pytest.mark.parametrize(
    ("adaptive", "message"),
    [
        ({"policy": "ucb"}, "adaptive.policy"),
        ({"max_exploration": 0.9}, "adaptive.max_exploration"),
        ({"epsilon": 0.1}, r"speculative_config.adaptive: unknown key 'epsilon'.*'max_exploration'"),
        ({"strategies": [{"drafter": "ngram", "width": 3}]}, "width"),
    ],
)
def test_a_bad_setting_is_named(adaptive, message):
    with pytest.raises(ValueError, match=message):
        TltConfig.from_user({"adaptive": adaptive})


def test_policies_are_what_was_asked_for():
    assert isinstance(build(), BegSelector)
    assert isinstance(build(policy="thompson"), ThompsonSelector)
    assert type(build(policy="fixed")) is FixedStrategy
    assert isinstance(build(policy="table", table=[[1, 4, 3]]), StrategyTable)
    assert build().cuts_to_cost
    assert not build(policy="fixed").cuts_to_cost


def test_the_default_set_fits_what_there_is():
    assert default_strategies(capacity()) == (NO_SPECULATION,)
    assert [one.name for one in default_strategies(capacity("ngram"))] == ["none", "ngram-w16"]
    assert [one.name for one in default_strategies(capacity("ngram", "learned", "both"))] == [
        "none",
        "ngram-w16",
        "learned-d4-k1-w5",
        "learned-d4-k4-w16",
        "both-d1-k4-w16",
        "both-d4-k4-w16",
    ]
    one_deep = default_strategies(capacity("ngram", "learned", "both", max_depth=1, max_top_k=1, max_nodes=3))
    assert [one.name for one in one_deep] == ["none", "ngram-w4", "learned-d1-k1-w2", "both-d1-k1-w4"]


def test_what_is_left_out_is_the_most():
    fixed = build(policy="fixed", strategies=[{"drafter": "both", "draft_depth": 2}])
    assert fixed.select(1, lambda _: True, lambda _: 1.0).strategy.name == "both-d2-k4-w16"
    fixed = build(policy="fixed", strategies=[{"drafter": "learned", "top_k": 1}])
    assert fixed.select(1, lambda _: True, lambda _: 1.0).strategy.name == "learned-d4-k1-w5"
