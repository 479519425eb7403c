"""What is recorded of running requests, and what that costs at most."""

from types import SimpleNamespace

import pytest
import torch

from tlt_engine.drafter_trainer.sample import PackedBatch
from tlt_engine.worker.sample_recorder import BUSY_SHARE, RecordingLimits, SampleRecorder
from worker.tapped import ROW_BYTES, take


def state(num_tokens=40, num_prompt_tokens=1, **changed):
    tokens = {
        "prompt_token_ids": list(range(num_prompt_tokens)),
        "output_token_ids": list(range(num_prompt_tokens, num_tokens)),
    }
    return SimpleNamespace(**tokens | changed)


def recorder_of(states, *, delivers=False, **limits):
    delivered = [] if delivers else None
    recorder = SampleRecorder(
        RecordingLimits(**{"max_bytes": 1 << 20, **limits}), delivered.append if delivers else None
    )
    recorder.states = states
    return (recorder, delivered) if delivers else recorder


def test_recording_stops_at_its_cap_and_goes_on_when_samples_are_fetched():
    recorder = recorder_of({name: state(5) for name in "abc"}, max_bytes=4 * ROW_BYTES)
    take(recorder, "ab", 0)
    take(recorder, "ab", 2)
    assert recorder.num_bytes() == (4 * ROW_BYTES, 4 * ROW_BYTES)
    for name in "ab":
        recorder.finish(name)
    assert [len(sample) for sample in recorder.take_finished()] == [2, 2]
    assert recorder.num_bytes()[0] == 0
    take(recorder, "c", 0)
    recorder.finish("c")
    assert [sample.req_id for sample in recorder.take_finished()] == ["c"]


def test_what_left_without_tokens_is_forgotten():
    states = {"a": state(), "b": state(prompt_token_ids=None)}  # a prompt of embeddings
    recorder = recorder_of(states)
    take(recorder, "ab", 0)
    del states["a"]
    for name in ("a", "b", "never seen"):
        recorder.finish(name)
    assert recorder.take_finished() == []
    assert recorder.num_bytes()[0] == 0


def test_a_running_request_leaves_spans_that_learn_each_token_once():
    recorder, delivered = recorder_of({"a": state(40, 3)}, delivers=True, context_tokens=4, span_tokens=8)
    for first in range(0, 38, 2):
        take(recorder, "a", first)
    recorder.finish("a")
    learnt = []
    for sample in delivered:
        batch = PackedBatch.pack([sample])
        learnt += batch.positions[1:][batch.is_learnt[1:]].tolist()
        assert sample.token_ids.tolist() == list(range(sample.first_position, sample.first_position + len(sample)))
    assert learnt == list(range(2, 38)), "from the last prompt token on, each predicts the next"
    assert len(delivered) > 3
    assert delivered[1].first_position == delivered[0].first_position + len(delivered[0]) - 4
    assert recorder.num_bytes()[0] == 0


def test_of_long_prompts_the_end_is_kept():
    recorder, delivered = recorder_of({"a": state(24, 20)}, delivers=True, context_tokens=5)
    for first in range(0, 24, 2):
        take(recorder, "a", first)
    recorder.finish("a")
    assert delivered[0].first_position == 15
    assert delivered[0].token_ids.tolist() == list(range(15, 24))


def test_a_preempted_request_is_recorded_anew():
    recorder = recorder_of({"a": state(9)})
    for first in (0, 2, 4, 0, 2):
        take(recorder, "a", first)
    recorder.finish("a")
    (sample,) = recorder.take_finished()
    assert (sample.first_position, len(sample)) == (0, 4)


def test_while_many_run_few_are_recorded():
    names = [f"request {number}" for number in range(20 * BUSY_SHARE)]
    recorder = recorder_of({name: state() for name in names}, max_running=8)
    for name in names:
        take(recorder, [name], 0)
        recorder.finish(name)
    assert 5 <= len(recorder.take_finished()) <= 50


def test_samples_belong_to_the_target_that_wrote_them():
    recorder, delivered = recorder_of({"a": state(12)}, delivers=True, context_tokens=4)
    take(recorder, "a", 0)
    take(recorder, "a", 2)
    recorder.set_target_version(1)
    assert recorder.num_bytes()[0] == 0, "hidden states of other weights are no context"
    take(recorder, "a", 4)
    recorder.finish("a")
    assert [(sample.target_version, sample.first_position) for sample in delivered] == [(0, 0), (1, 4)]


def test_responses_to_one_prompt_are_one_group():
    states = {"a": state(5, 3), "b": state(6, 3), "c": state(6, 4)}
    recorder = recorder_of(states)
    take(recorder, "abc", 0)
    for name in "abc":
        recorder.finish(name)
    first, second, other = recorder.take_finished()
    assert first.group == second.group != other.group


@pytest.mark.parametrize("delivers", [True, False])
def test_what_is_recorded_can_be_trained_on(delivers):
    with torch.inference_mode():
        made = recorder_of({"a": state(9)}, delivers=delivers)
        recorder = made[0] if delivers else made
        take(recorder, "a", 0)
        recorder.finish("a")
    (sample,) = made[1] if delivers else recorder.take_finished()
    assert not sample.features.is_inference()
    assert not sample.token_ids.is_inference()


def test_what_a_preempted_request_computes_again_is_not_recorded_again():
    recorder, delivered = recorder_of({"a": state(40)}, delivers=True, context_tokens=4, span_tokens=8)
    for first in range(0, 20, 2):
        take(recorder, "a", first)
    done = delivered[-1].first_position + len(delivered[-1])
    for first in range(0, 36, 2):
        take(recorder, "a", first)
    recorder.finish("a")
    assert max(map(len, delivered)) <= 14
    learnt = []
    for sample in delivered:
        batch = PackedBatch.pack([sample])
        learnt += batch.positions[1:][batch.is_learnt[1:]].tolist()
    assert done == 20
    assert sorted(set(learnt)) == list(range(1, 36))
    assert len(learnt) <= 36 + 2, "only what no sample had yet is learnt from the second time"


def test_at_the_cap_the_largest_recording_makes_room():
    recorder, delivered = recorder_of({name: state(40) for name in "ab"}, delivers=True, max_bytes=6 * ROW_BYTES)
    take(recorder, "a", 0)
    take(recorder, "ab", 2)
    take(recorder, "b", 4)
    assert [sample.req_id for sample in delivered] == ["a"]
    assert recorder.num_bytes()[0] == 4 * ROW_BYTES


def test_a_session_that_goes_on_with_the_users_words_is_recorded_no_longer():
    states = {"a": state(12, 3)}
    recorder, delivered = recorder_of(states, delivers=True)
    take(recorder, "a", 0)
    states["a"].prompt_token_ids = list(range(8))
    take(recorder, "a", 2)
    recorder.finish("a")
    assert delivered == []
    assert recorder.num_bytes()[0] == 0
