"""A drafter that stops coming true is noticed, left alone and tried again; ordinary change is no alarm."""

import random

import pytest

from tlt_engine.spec.collapse_alarm import FIRST_PAUSE_STEPS, RECENT, CollapseAlarm


def feed(alarm, rate, num_guesses, seed=0):
    rng = random.Random(seed)
    return [message for _ in range(num_guesses) if (message := alarm.record(came_true=rng.random() < rate))]


def test_a_collapse_against_its_own_history_is_told_once():
    alarm = CollapseAlarm()
    assert feed(alarm, 0.6, 3000) == []
    messages = feed(alarm, 0.02, RECENT)
    assert len(messages) == 1
    assert "of its likeliest next tokens come true" in messages[0]
    assert not alarm.allows
    assert alarm.reason in messages[0]
    assert alarm.num_alarms == 1


def test_another_targets_drafter_is_noticed_by_its_provenance():
    alarm = CollapseAlarm()
    alarm.expect(0.7)
    assert len(feed(alarm, 0.02, RECENT)) == 1
    assert "where it was trained" in alarm.reason


@pytest.mark.parametrize(("before", "after"), [(0.6, 0.3), (0.3, 0.15), (0.05, 0.02), (0.6, 0.9)])
def test_ordinary_change_is_no_alarm(before, after):
    alarm = CollapseAlarm()
    alarm.expect(before)
    for seed in range(5):
        assert feed(alarm, before, 1000, seed) + feed(alarm, after, 400, seed) == []
    assert alarm.rate == pytest.approx(after, abs=0.15)


def test_it_is_tried_again_and_paused_longer_if_it_goes_on():
    alarm = CollapseAlarm()
    feed(alarm, 0.6, 3000)
    pauses = []
    for _ in range(2):
        while alarm.allows:
            alarm.record(came_true=False)
        pauses.append(0)
        while not alarm.allows:
            alarm.pass_step()
            pauses[-1] += 1
        assert alarm.reason is None
    assert pauses == [FIRST_PAUSE_STEPS, 2 * FIRST_PAUSE_STEPS]
    assert feed(alarm, 0.6, 500) == [], "it works again"
    assert alarm.allows
    assert f"for {FIRST_PAUSE_STEPS} steps" in feed(alarm, 0.0, 2 * RECENT)[0]


def test_new_weights_start_afresh():
    alarm = CollapseAlarm()
    feed(alarm, 0.6, 3000)
    feed(alarm, 0.0, RECENT)
    assert not alarm.allows
    alarm.expect(None)
    assert alarm.allows and alarm.reason is None
    assert feed(alarm, 0.05, 1000) == [], "nobody knows what these are worth"
