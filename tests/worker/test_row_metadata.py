"""Processors see, at each row, what stock shows them when the row's path has really been emitted."""

import pytest
import torch
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from tlt_engine.worker.row_metadata import has_custom_processors, has_processing, metadata_for_rows

VOCAB = 24
OUTPUTS = [[3, 4, 3], [7], []]
REQS = [0, 0, 1, 2, 2, 2]
PATHS = [[], [3, 5], [8, 9], [], [1], [1, 2]]


class FakeConfig:
    """As much of vLLM's configuration as the processors read."""

    class scheduler_config:  # noqa: N801
        max_num_seqs = 8


def processors(min_tokens=None, biases=None, min_p=None):
    device = torch.device("cpu")
    tokens = MinTokensLogitsProcessor(FakeConfig, device, False)
    for req, (limit, outputs) in (min_tokens or {}).items():
        tokens.min_toks[req] = (limit, outputs, {20, 21}, False)
    entries = [(req, limit) for req, limit in tokens.min_toks.items() if len(limit[1]) < limit[0]]
    rows = [req for req, _ in entries for _ in range(2)]
    tokens.logits_slice = (
        tokens._device_tensor(rows, torch.int32),
        tokens._device_tensor([20, 21] * len(entries), torch.int32),
    )
    bias = LogitBiasLogitsProcessor(None, device, False)
    bias.biases = dict(biases or {})
    flat = [(req, token, value) for req, one in bias.biases.items() for token, value in one.items()]
    bias.bias_tensor = torch.tensor([value for _, _, value in flat])
    bias.logits_slice = tuple(torch.tensor([entry[i] for entry in flat], dtype=torch.int32) for i in (0, 1))
    least = MinPLogitsProcessor(FakeConfig, device, False)
    for req, value in (min_p or {}).items():
        least.min_p_cpu[req] = value
        least.min_p_count += 1
    least.min_p = least.min_p_device[: len(REQS)].unsqueeze(1)
    return LogitsProcessors([tokens, bias, least])


def metadata(outputs, reqs, **changes):
    """Metadata of a batch whose request ``i`` is request ``reqs[i]`` of the case."""
    n = len(reqs)
    penalties = torch.tensor([0.5, 1.5, 0.7])[reqs]
    prompts = torch.tensor([[1, 2, 24], [3, 3, 5], [9, 10, 24]])[reqs]
    fields = {
        "temperature": torch.ones(n),
        "all_greedy": False,
        "all_random": True,
        "top_p": None,
        "top_k": None,
        "generators": {},
        "max_num_logprobs": None,
        "no_penalties": False,
        "prompt_token_ids": prompts,
        "frequency_penalties": penalties,
        "presence_penalties": penalties / 2,
        "repetition_penalties": 1 + penalties,
        "output_token_ids": outputs,
        "allowed_token_ids_mask": None,
        "bad_words_token_ids": {},
        "logitsprocs": LogitsProcessors([]),
    }
    return SamplingMetadata(**{**fields, **changes})


def processed(logits, meta):
    logits = Sampler().apply_logits_processors(logits.clone(), meta, predict_bonus_token=False)
    for processor in meta.logitsprocs.argmax_invariant:
        logits = processor.apply(logits)
    return logits


def check(of_batch, of_rows):
    """``of_batch`` describes three requests; ``of_rows`` the same with every row a request of its own."""
    logits = torch.randn(len(REQS), VOCAB, generator=torch.Generator().manual_seed(0))
    rows = metadata_for_rows(of_batch, REQS, PATHS, torch.device("cpu"))
    got, want = processed(logits, rows), processed(logits, of_rows)
    assert torch.equal(got, want)
    assert not torch.equal(want, logits), "the case processes nothing"


EMITTED = [[*OUTPUTS[req], *path] for req, path in zip(REQS, PATHS, strict=True)]


def test_penalties_count_the_path():
    check(metadata(OUTPUTS, [0, 1, 2]), metadata(EMITTED, REQS))


def test_bad_words_match_across_the_path():
    words = {0: [[3, 5, 6], [4]], 2: [[1, 2, 11], [1, 12]]}
    by_row = {row: words[req] for row, req in enumerate(REQS) if req in words}
    plain = {"no_penalties": True}
    check(
        metadata(OUTPUTS, [0, 1, 2], bad_words_token_ids=words, **plain),
        metadata(EMITTED, REQS, bad_words_token_ids=by_row, **plain),
    )


def test_min_tokens_end_inside_a_path():
    limits = {0: 5, 1: 3, 2: 2}
    batch = processors(min_tokens={req: (limit, OUTPUTS[req]) for req, limit in limits.items()})
    rows = processors(min_tokens={row: (limits[req], EMITTED[row]) for row, req in enumerate(REQS)})
    masked = {
        int(row)
        for row in processors(min_tokens={row: (limits[req], EMITTED[row]) for row, req in enumerate(REQS)})
        .non_argmax_invariant[0]
        .logits_slice[0]
    }
    assert 0 < len(masked) < len(REQS), "no path crosses the limit"
    check(
        metadata(OUTPUTS, [0, 1, 2], no_penalties=True, logitsprocs=batch),
        metadata(EMITTED, REQS, no_penalties=True, logitsprocs=rows),
    )


def test_bias_and_min_p_follow_the_request():
    biases, least = {0: {3: 5.0, 4: -50.0}, 2: {9: 2.5}}, {0: 0.3, 2: 0.05}
    batch = processors(biases=biases, min_p=least)
    rows = processors(
        biases={row: biases[req] for row, req in enumerate(REQS) if req in biases},
        min_p={row: least[req] for row, req in enumerate(REQS) if req in least},
    )
    check(
        metadata(OUTPUTS, [0, 1, 2], no_penalties=True, logitsprocs=batch),
        metadata(EMITTED, REQS, no_penalties=True, logitsprocs=rows),
    )


def test_allowed_tokens_follow_the_request():
    mask = torch.rand(3, VOCAB, generator=torch.Generator().manual_seed(1)) < 0.5
    plain = {"no_penalties": True}
    check(
        metadata(OUTPUTS, [0, 1, 2], allowed_token_ids_mask=mask, **plain),
        metadata(EMITTED, REQS, allowed_token_ids_mask=mask[REQS], **plain),
    )


def test_top_k_top_p_and_temperature_are_gathered():
    meta = metadata(
        OUTPUTS,
        [0, 1, 2],
        temperature=torch.tensor([0.5, 1.0, 2.0]),
        top_k=torch.tensor([1, 2, 3]),
        top_p=torch.tensor([0.1, 0.2, 0.3]),
    )
    rows = metadata_for_rows(meta, REQS, PATHS, torch.device("cpu"))
    assert rows.temperature.tolist() == [0.5, 0.5, 1.0, 2.0, 2.0, 2.0]
    assert rows.top_k.tolist() == [1, 1, 2, 3, 3, 3]
    assert rows.top_p.tolist() == pytest.approx([0.1, 0.1, 0.2, 0.3, 0.3, 0.3])


def test_idle_processors_are_no_processing_and_custom_ones_are_found():
    plain = metadata([], [0, 1, 2], no_penalties=True, logitsprocs=processors())
    assert not has_processing(plain)
    assert has_processing(metadata([], [0, 1, 2], no_penalties=True, logitsprocs=processors(min_p={1: 0.1})))

    class Custom(LogitBiasLogitsProcessor.__mro__[1]):
        def apply(self, logits):
            return logits

        def is_argmax_invariant(self):
            return True

        def update_state(self, batch_update):
            pass

        def __init__(self):
            pass

    custom = LogitsProcessors([Custom()])
    assert has_custom_processors(custom)
    assert not has_custom_processors(processors())
    assert has_processing(metadata([], [0, 1, 2], no_penalties=True, logitsprocs=custom))
