"""Policies on simulated machines: little is lost, shifts are found, nothing flaps, and choices repeat under a seed."""

import random
from statistics import mean

import pytest

from spec.simulated_engine import BATCH_SIZES, CPU, H100, L40, MACHINES, NGRAM, long_tail, simulate, tree
from tlt_engine.spec import selector as selector_module
from tlt_engine.spec.policies import Choice, FixedStrategy, StrategyTable
from tlt_engine.spec.selector import BegSelector, ThompsonSelector
from tlt_engine.spec.strategy import NO_SPECULATION

POLICIES = {"beg": BegSelector, "thompson": ThompsonSelector}
NUM_STEPS, NUM_SEEDS = 2000, 4


def make(policy, machine, *, seed=0, max_exploration=0.02):
    return POLICIES[policy](machine.strategies, max_exploration=max_exploration, seed=seed)


def runs(policy, machine, batch_sizes, prediction_error=0.1):
    for seed in range(NUM_SEEDS):
        chooser = make(policy, machine, seed=seed)
        run = simulate(chooser, lambda _: machine, batch_sizes, seed=seed, prediction_error=prediction_error)
        yield run, chooser.snapshot()


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_rollout_loses_less_than_three_percent(policy, name):
    machine = MACHINES[name]
    found = list(runs(policy, machine, long_tail(NUM_STEPS)))
    assert mean(run.regret for run, _ in found) < 0.03, [run.regret for run, _ in found]
    assert max(snapshot["exploration_share"] for _, snapshot in found) < 0.025
    assert max(run.switches for run, _ in found) <= 40, "over some thirty sizes of batch"


@pytest.mark.parametrize("batch_size", BATCH_SIZES)
@pytest.mark.parametrize("name", MACHINES)
def test_predictions_that_are_a_quarter_off_are_overruled(name, batch_size):
    found = [run.regret for run, _ in runs("beg", MACHINES[name], [batch_size] * NUM_STEPS, prediction_error=0.25)]
    assert mean(found) < 0.08, found


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", MACHINES)
def test_no_one_strategy_loses_less_over_a_rollout(policy, name):
    machine = MACHINES[name]
    adaptive = mean(run.regret for run, _ in runs(policy, machine, long_tail(NUM_STEPS)))
    for strategy in (NO_SPECULATION, *machine.strategies):
        assert adaptive < simulate(FixedStrategy(strategy), lambda _: machine, long_tail(NUM_STEPS)).regret


def test_wrong_policies_lose_more():
    """What the limits above are worth: one that always does the same, and one that tries everything alike."""

    class Random(FixedStrategy):
        rng = random.Random(0)

        def select(self, batch_size, is_possible, predict):
            return Choice(self.rng.choice((NO_SPECULATION, *CPU.strategies)))

    for wrong in (FixedStrategy(NO_SPECULATION), FixedStrategy(NGRAM), Random(NGRAM)):
        assert simulate(wrong, lambda _: CPU, long_tail(NUM_STEPS)).regret > 0.045


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("before", "after"), [(1.0, 0.3), (0.3, 1.0)])
def test_a_shift_of_acceptance_is_followed_within_two_hundred_steps(policy, before, after):
    """The trees' speed falls to a third and look-up becomes best; or the other way round."""
    best = {1.0: tree(16), 0.3: NGRAM}

    def machine_of(step):
        factor = before if step < 1000 else after
        scaled = {
            strategy: tuple(factor * one for one in speedups) if strategy == tree(16) else speedups
            for strategy, speedups in L40.speedups.items()
            if strategy != tree(32)
        }
        return type(L40)(scaled, L40.plain_seconds)

    followed = []
    for seed in range(NUM_SEEDS):
        chooser = POLICIES[policy](tuple(machine_of(0).speedups), max_exploration=0.02, seed=seed)
        run = simulate(chooser, machine_of, [2] * 1400, seed=seed, prediction_error=0.0)
        assert mean(one == best[before] for one in run.chosen[800:1000]) > 0.85
        followed.append(mean(one == best[after] for one in run.chosen[1200:1400]))
    assert min(followed) > 0.8, followed


def test_a_stale_prediction_does_not_hide_a_shift():
    """The cost model goes on believing in what no longer holds."""
    later = type(L40)({tree(16): (0.5,) * 6, tree(32): (0.4,) * 6, NGRAM: (1.5,) * 6}, (0.025,) * 6)

    def machine_of(step):
        return L40 if step < 1000 else later

    class Believer(BegSelector):
        def select(self, batch_size, is_possible, predict):
            return super().select(batch_size, is_possible, lambda strategy: L40.speedup(strategy, batch_size))

    chooser = Believer(L40.strategies, max_exploration=0.02, seed=0)
    run = simulate(chooser, machine_of, [1] * 1600)
    assert mean(one == NGRAM for one in run.chosen[1300:]) > 0.8


@pytest.mark.parametrize("policy", POLICIES)
def test_equal_strategies_do_not_take_turns(policy, monkeypatch):
    alike = type(L40)({tree(16): (1.5,) * 6, tree(32): (1.5,) * 6, NGRAM: (1.5,) * 6}, (0.03,) * 6)

    def most_switches():
        return max(run.switches for run, _ in runs(policy, alike, [1] * NUM_STEPS))

    with_hysteresis = most_switches()
    monkeypatch.setattr(selector_module, "MARGIN", 0.0)
    monkeypatch.setattr(selector_module, "CONFIDENCE", 0.0)
    assert with_hysteresis <= 12 < most_switches()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_batch_that_swings_around_a_threshold_does_not_switch_at_every_step(policy):
    """Public case J1: drafts pay at 7 requests and not at 9."""
    machine = type(L40)({NGRAM: (1.6, 1.4, 1.2, 1.0, 0.8, 0.6)}, (0.03,) * 6)
    chooser = make(policy, machine)
    simulate(chooser, lambda _: machine, [4] * 100)
    run = simulate(chooser, lambda _: machine, [7, 8, 9, 8] * 25)
    assert run.switches <= 2


def test_choices_repeat_under_a_seed():
    chosen = [simulate(make("beg", H100, seed=seed), lambda _: H100, long_tail(500)).chosen for seed in (3, 3, 4)]
    assert chosen[0] == chosen[1] != chosen[2]


@pytest.mark.parametrize("policy", POLICIES)
def test_without_exploration_nothing_is_tried(policy):
    chooser = make(policy, CPU, max_exploration=0.0)
    simulate(chooser, lambda _: CPU, [4] * 500)
    assert chooser.snapshot()["explored_steps"] == 0


def test_what_is_tried_costs_no_more_than_allowed():
    """Trees take five and ten times as long here: each try is dear, and there are few."""
    bad = type(L40)({tree(16): (0.2,) * 6, tree(32): (0.1,) * 6}, (0.03,) * 6)
    found = list(runs("beg", bad, [8] * NUM_STEPS, prediction_error=0.0))
    assert max(run.regret for run, _ in found) < 0.03
    assert min(snapshot["explored_steps"] for _, snapshot in found) > 0, "and still it is looked at now and then"


def test_a_strategy_that_cannot_be_asked_is_not_chosen():
    chooser = make("beg", L40)
    run = simulate(chooser, lambda _: L40, [1] * 300, is_possible=lambda strategy: strategy == NGRAM)
    assert set(run.chosen) <= {NGRAM, NO_SPECULATION}
    run = simulate(chooser, lambda _: L40, [1] * 50, is_possible=lambda _: False)
    assert set(run.chosen) == {NO_SPECULATION}
    run = simulate(chooser, lambda _: L40, [1] * 300)
    assert mean(one in (tree(16), tree(32)) for one in run.chosen[-200:]) > 0.8


def test_with_nothing_to_choose_from_nothing_is_drafted():
    chooser = BegSelector((), max_exploration=0.02, seed=0)
    assert set(simulate(chooser, lambda _: L40, [1, 2, 3]).chosen) == {NO_SPECULATION}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0, -1.0])
def test_times_that_are_none_teach_nothing(bad):
    chooser = make("beg", L40)
    before = chooser.snapshot()
    chooser.record(1, Choice(NGRAM), 0.03, bad)
    chooser.record(1, Choice(NGRAM), bad, 0.03)
    assert chooser.snapshot() == before


@pytest.mark.parametrize("num_kept", [0, 8])
def test_new_weights_are_judged_by_what_they_do(num_kept):
    """Trees turned out half as good as predicted; other weights are predicted the same and may be what is predicted."""
    chooser = BegSelector((tree(16), NGRAM), max_exploration=0.02, seed=0)

    def estimates():
        chooser.select(4, lambda _: True, lambda strategy: 1.0 if strategy == NO_SPECULATION else 2.0)
        return chooser.snapshot()["estimates"]

    estimates()
    for strategy in (tree(16), NGRAM):
        for _ in range(500):
            chooser.record(4, Choice(strategy), 0.03, 0.03)
    before = estimates()
    assert before[tree(16).name]["speedup"] == pytest.approx(1.0, abs=0.03)
    chooser.forget(["both"], num_kept)
    after = estimates()
    assert after[tree(16).name]["steps"] == num_kept
    assert after[tree(16).name]["speedup"] > (1.95 if num_kept == 0 else 1.2)
    assert after[NGRAM.name]["speedup"] == pytest.approx(before[NGRAM.name]["speedup"], abs=0.01), "look-up is the same"


def test_what_one_size_of_batch_teaches_others_know(monkeypatch):
    """Trees are worth half of what is predicted, at every size: after many steps alone, two side by side know it."""
    half = type(L40)({tree(16): (1.3, 1.15, 1.0, 0.7, 0.5, 0.4), NGRAM: (1.5,) * 6}, (0.025,) * 6)

    def first_choices(teach):
        chooser = BegSelector(half.strategies, max_exploration=0.02, seed=1)

        def predict(strategy):
            return {NO_SPECULATION: 1.0, NGRAM: 1.5, tree(16): 2.4}[strategy]

        if teach:
            for _ in range(200):
                choice = chooser.select(1, lambda _: True, predict)
                chooser.record(1, choice, 0.025 * half.speedup(choice.strategy, 1), 0.025)
        return [chooser.select(2, lambda _: True, predict) for _ in range(5)]

    assert {choice.strategy for choice in first_choices(teach=False) if not choice.is_exploration} == {tree(16)}
    assert {choice.strategy for choice in first_choices(teach=True) if not choice.is_exploration} == {NGRAM}


def test_the_table_is_vllms():
    """Ranges as in ``num_speculative_tokens_per_batch_size``: a gap and the rest go on as the range before."""
    table = StrategyTable(tree(16), [(1, 4, 15), (6, 8, 3), (16, 32, 0)])

    def width(batch_size):
        return table.select(batch_size, lambda _: True, lambda _: 1.0).strategy.verify_width

    assert [width(size) for size in (1, 4, 5, 6, 8, 9, 15, 16, 32, 500)] == [16, 16, 16, 4, 4, 4, 4, 1, 1, 1]
    assert table.select(6, lambda _: True, lambda _: 1.0).strategy.draft_depth == 3
    assert table.select(1, lambda _: False, lambda _: 1.0).strategy == NO_SPECULATION
