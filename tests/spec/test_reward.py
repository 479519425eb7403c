"""Rewards are averaged by time, follow changes, and know how far they may be off."""

import random

import pytest

from tlt_engine.spec.reward import RECENT, WINDOW, ArmReward


def filled(ratio, num_steps, *, noise=0.0, seed=0, arm=None, start=0):
    arm, rng = arm or ArmReward(), random.Random(seed)
    for step in range(num_steps):
        arm.record(max(0.0, rng.gauss(ratio, noise)) * 0.03, 0.03, start + step)
    return arm


def test_before_a_step_the_prior_is_all_there_is():
    assert ArmReward().estimate(1.4, 0).mean == 1.4
    assert ArmReward().estimate(1.4, 0, prior_steps=800).deviation < ArmReward().estimate(1.4, 0).deviation / 5


def test_rates_are_averaged_by_time():
    arm = ArmReward()
    for step in range(400):
        arm.record(0.01, 0.01 if step % 2 else 0.03, step)
    assert arm.estimate(1.0, 400).mean == pytest.approx(0.5, abs=0.01), "not the mean of 1 and 1/3"


def test_deviation_is_that_of_the_mean():
    means = [filled(1.5, 200, noise=0.8, seed=seed).estimate(1.5, 200) for seed in range(60)]
    spread = (sum((mean - 1.5) ** 2 for mean, _ in means) / len(means)) ** 0.5
    assert means[0].deviation == pytest.approx(spread, rel=0.35)


def test_a_slow_step_says_little():
    arm = filled(1.5, 100)
    arm.record(0.045, 30.0, 100)
    assert arm.estimate(1.5, 100).mean > 1.4


def test_a_change_is_noticed_and_noise_is_not():
    arm = filled(2.0, 800, noise=1.0)
    assert len(arm) == 800
    filled(1.0, 3 * RECENT, noise=0.7, arm=arm, start=800, seed=1)
    assert len(arm) <= 4 * RECENT
    assert arm.estimate(2.0, 900).mean < 1.3


def test_what_was_long_ago_counts_less():
    arm = filled(2.0, 50)
    assert arm.estimate(1.0, 50).mean > 1.8
    assert arm.estimate(1.0, 50_000).mean == pytest.approx(1.0, abs=0.01)
    assert arm.estimate(1.0, 50_000).deviation > 2 * arm.estimate(1.0, 50).deviation


def test_memory_is_bounded_and_can_be_let_go():
    arm = filled(1.0, 3 * WINDOW)
    assert len(arm) == WINDOW
    arm.keep(4)
    assert len(arm) == 4
    arm.keep(0)
    assert arm.estimate(1.3, 0).mean == 1.3
