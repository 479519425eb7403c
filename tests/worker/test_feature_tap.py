"""Who is tapped, and what recording costs at most."""

from types import SimpleNamespace

import numpy as np
import torch

from tlt_engine.drafter.feature_ring import FeatureRing
from tlt_engine.worker.feature_tap import CommittedRows, FeatureTap, SampleRecorder

HIDDEN = torch.arange(12.0)[:, None].expand(12, 2)
ROW_BYTES = 3 * 2 * 4
"""Of the two parts of a feature and of the final hidden state, in float32."""


def step(*, first: int, num_reqs: int) -> CommittedRows:
    """Each request commits two rows from position ``first`` on."""
    rows = np.arange(2 * num_reqs)
    return CommittedRows(rows, list(range(0, 2 * num_reqs + 1, 2)), [first] * num_reqs)


def take(taker, names, first):
    taker.take(list(names), step(first=first, num_reqs=len(names)), [HIDDEN, -HIDDEN], HIDDEN)


def test_a_full_batch_is_not_newly_tapped():
    ring = FeatureRing(4, 8, 4, dtype=torch.float32)
    tap = FeatureTap(ring, capture_threshold=2)
    take(tap, "abc", 0)
    assert len(ring) == 0
    take(tap, "bc", 2)
    assert ring.extent("b") == ring.extent("c") == (2, 4), "features begin where the tap did"
    take(tap, "abc", 4)
    assert "a" not in ring
    assert ring.extent("c") == (2, 6)
    assert ring.read("c", 4, 6).tolist() == [[4.0, 4.0, -4.0, -4.0], [5.0, 5.0, -5.0, -5.0]]


def state(num_tokens, **changed):
    tokens = {"prompt_token_ids": [7], "output_token_ids": list(range(num_tokens)), "num_prompt_tokens": 1}
    return SimpleNamespace(**tokens | changed)


def test_recording_stops_at_its_cap_and_goes_on_when_samples_are_fetched():
    recorder = SampleRecorder(max_bytes=4 * ROW_BYTES)
    take(recorder, "ab", 0)
    take(recorder, "ab", 2)
    assert recorder.num_bytes() == (4 * ROW_BYTES, 4 * ROW_BYTES)
    for name in "ab":
        recorder.finish(name, state(4))
    assert [len(sample) for sample in recorder.take_finished()] == [2, 2]
    assert recorder.num_bytes()[0] == 0
    take(recorder, "c", 0)
    recorder.finish("c", state(2))
    assert [sample.req_id for sample in recorder.take_finished()] == ["c"]


def test_what_left_without_tokens_is_forgotten():
    recorder = SampleRecorder(max_bytes=1 << 20)
    take(recorder, "ab", 0)
    recorder.finish("a", None)
    recorder.finish("b", state(2, prompt_token_ids=None))  # a prompt of embeddings
    recorder.finish("never seen", state(2))
    assert recorder.take_finished() == []
    assert recorder.num_bytes()[0] == 0
