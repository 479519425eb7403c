"""The held-out text that is read is of all times, of the wanted size, and mostly that of the time before."""

import pytest

from drafter_trainer.counting import counting_sample
from tlt_engine.drafter_trainer.held_out import latest, spread

SAMPLES = [counting_sample(number, name=f"request {number}") for number in range(1000)]  # 24 tokens each


@pytest.mark.parametrize("max_tokens", [2400, 4000, 23_000])  # a tenth, a sixth, nearly all: a half
def test_about_as_many_tokens_as_wanted_come_from_all_times(max_tokens):
    chosen = spread(SAMPLES, max_tokens)
    assert 0.4 * max_tokens < sum(map(len, chosen)) < 1.2 * max_tokens
    places = [SAMPLES.index(sample) for sample in chosen]
    assert places == sorted(places)
    for first in range(0, 1000, 250):
        assert 0.1 * len(places) < sum(first <= place < first + 250 for place in places) < 0.5 * len(places)


def test_what_was_chosen_before_is_chosen_again_while_text_comes_and_goes():
    before, after = spread(SAMPLES[:600], 4000), spread(SAMPLES[50:650], 4000)
    kept = [sample for sample in before if sample in SAMPLES[50:]]
    assert kept == [sample for sample in after if sample in SAMPLES[:600]]
    assert len(kept) > 50
    more = spread(SAMPLES, 4000)  # half as many of the old ones, none that was not chosen before
    assert set(more) & set(SAMPLES[:600]) < set(before)


def test_few_samples_are_all_read_and_long_ones_one_at_least():
    assert spread(SAMPLES[:5], 1000) == SAMPLES[:5]
    assert len(spread(SAMPLES[:3], 1)) == 1
    assert spread([], 1000) == []


def test_the_latest_come_as_far_as_they_fit():
    assert set(latest(SAMPLES, 60)) == set(SAMPLES[-2:])
    assert latest(SAMPLES, 1) == SAMPLES[-1:]
    assert latest([], 60) == []
