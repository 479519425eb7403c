"""The buffer keeps within its cap, draws fairly, and never trains on what it holds out."""

import zlib

import pytest

from drafter.small import random_sample
from tlt_engine.drafter_trainer.sample import PackedBatch, Sample
from tlt_engine.drafter_trainer.sample_buffer import HELD_OUT_EVERY, HELD_OUT_SHARE, MOST_SAMPLE_TOKENS, SampleBuffer


def sample(name, num_tokens=10, version=0, group=""):
    made = random_sample(num_tokens, seed=zlib.crc32(name.encode()) % 1000)
    return Sample(**vars(made) | {"req_id": name, "target_version": version, "group": group})


def learnt_names(count):
    """Names of requests that are not held out."""
    names = (f"r{number}" for number in range(100 * count))
    return [name for name in names if zlib.crc32(name.encode()) % HELD_OUT_EVERY][:count]


def filled(names, **about):
    buffer = SampleBuffer(1 << 30)
    for name in names:
        buffer.add(sample(name, **about))
    return buffer


def test_no_sample_comes_twice_before_all_came_once():
    names = learnt_names(20)
    buffer = filled(names)
    for _ in range(3):
        drawn = []
        while len(drawn) < len(names):
            drawn += [one.req_id for one in buffer.draw(25)]
        assert sorted(drawn) == sorted(names)


def test_micro_batches_are_filled_and_never_empty():
    buffer = filled(learnt_names(6))
    assert [len(buffer.draw(25)) for _ in range(3)] == [2, 2, 2]
    assert [len(buffer.draw(1)) for _ in range(2)] == [1, 1], "one that is longer than the micro-batch comes alone"
    assert SampleBuffer(1 << 20).draw(100) == []


def test_long_ones_come_first():
    buffer = SampleBuffer(1 << 30)
    for place, name in enumerate(learnt_names(8)):
        buffer.add(sample(name, 10 + (5 * place) % 8))
    lengths = [len(buffer.draw(1)[0]) for _ in range(8)]
    assert lengths == sorted(lengths, reverse=True)


def test_newest_target_first_then_the_long_ones_of_the_one_before():
    names = learnt_names(9)
    buffer = SampleBuffer(1 << 30)
    for place, name in enumerate(names[:6]):
        buffer.add(sample(name, 10 + place, version=1))
    buffer.draw(10_000)  # a pass over the old target's ends before the new one writes
    for name in names[6:]:
        buffer.add(sample(name, 8, version=2))
    assert {one.req_id for one in buffer.draw(24)} == set(names[6:])
    second = buffer.draw(10_000)
    assert [one.target_version for one in second] == [2, 2, 2, 1]
    assert len(second[3]) == 15, "as many tokens of the old target as of the new one at most, the longest first"


def test_the_cap_is_kept_and_the_oldest_target_goes_first():
    names = learnt_names(12)
    size = sample(names[0]).num_bytes()
    buffer = SampleBuffer(int(6.5 * size / (1 - HELD_OUT_SHARE)))
    for place, name in enumerate(names):
        buffer.add(sample(name, version=1 if place < 4 else 0))
        assert buffer.num_bytes <= buffer.max_bytes
    assert len(buffer) == 6
    assert set(names[:4]) <= {one.req_id for one in buffer.draw(10_000)}, "samples of the newest target stay"
    assert buffer.num_dropped["no room, never drawn"] == 6
    assert not buffer.add(sample(names[0], 200))
    assert buffer.num_dropped["larger than the buffer"] == 1


def test_what_is_held_out_is_never_drawn_and_a_group_stays_together():
    buffer = SampleBuffer(1 << 30)
    for number in range(60 * HELD_OUT_EVERY):
        buffer.add(sample(f"r{number}", 3, group=f"prompt {number // 4}"))
    held_out = {one.req_id for one in buffer.held_out()}
    assert 20 <= len(held_out) <= 120
    drawn = {one.req_id for one in buffer.draw(10**9)}
    assert not drawn & held_out
    assert len(drawn | held_out) == 60 * HELD_OUT_EVERY
    groups = {int(name[1:]) // 4 for name in held_out}
    assert len(held_out) == 4 * len(groups)


def test_a_few_prompts_leave_something_held_out_that_was_never_drawn():
    buffer = SampleBuffer(1 << 30)
    drawn = set()
    for number, group in enumerate(learnt_names(40)):
        buffer.add(sample(f"q{number}", 40, group=group))
        drawn |= {one.group for one in buffer.draw(1)}
    held_out = {one.group for one in buffer.held_out()}
    assert held_out, "no group was held out by its name, so some must be by their turn"
    assert not held_out & drawn
    for group in sorted(drawn)[:3]:
        buffer.add(sample("again", 3, group=group))
    assert not {one.group for one in buffer.held_out()} & drawn


def test_a_group_that_was_trained_on_is_not_held_out_later():
    buffer = SampleBuffer(1 << 30)
    names = learnt_names(14)
    for name in names[:13]:
        buffer.add(sample(name, 40, group=name))
    assert buffer.held_out() == [], "while there was little text"
    assert buffer.draw(10_000)
    buffer.add(sample("again", 40, group=names[0]))
    assert buffer.held_out() == []
    buffer.add(sample("new", 40, group=names[13]))
    assert [one.req_id for one in buffer.held_out()] == ["new"]


def test_a_sample_in_which_nothing_is_learnt_is_counted():
    buffer = SampleBuffer(1 << 30)
    for num_tokens, num_prompt_tokens in ((5, 6), (1, 0)):
        assert not buffer.add(random_sample(num_tokens, num_prompt_tokens=num_prompt_tokens))
    assert buffer.num_dropped["nothing to learn"] == 2
    assert buffer.add(random_sample(5, num_prompt_tokens=5))


def test_a_sample_that_training_has_no_memory_for_is_refused():
    buffer = SampleBuffer(1 << 30)
    assert not buffer.add(random_sample(MOST_SAMPLE_TOKENS + 1))
    assert buffer.num_dropped["too long"] == 1


def test_a_new_target_is_judged_by_earlier_text_until_it_has_written_enough():
    buffer = SampleBuffer(1 << 30)
    held_out = [f"r{number}" for number in range(200) if zlib.crc32(f"r{number}".encode()) % HELD_OUT_EVERY == 0]
    for name in held_out[:8]:
        buffer.add(sample(name, 100))
    buffer.add(sample(learnt_names(1)[0], 100, version=1))
    buffer.add(sample(held_out[8], 100, version=1))
    assert {one.target_version for one in buffer.held_out()} == {0, 1}
    for name in held_out[9:14]:
        buffer.add(sample(name, 100, version=1))
    assert {one.target_version for one in buffer.held_out()} == {1}


@pytest.mark.parametrize("first_position", [0, 3, 9])
@pytest.mark.parametrize("num_prompt_tokens", [0, 1, 7, 14, 15, 40])
def test_what_is_learnt_is_counted_as_training_counts_it(num_prompt_tokens, first_position):
    one = random_sample(12, num_prompt_tokens=num_prompt_tokens, first_position=first_position)
    batch = PackedBatch.pack([one])
    assert one.num_learnt() == int(batch.is_learnt[1:].sum())
