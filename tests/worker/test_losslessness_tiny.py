"""Whatever the drafter does, the tokens are those of the engine that never drafts, and the engine stays alive."""

import pytest

from engine import EngineJob, run_engine
from models import TINY_VOCAB
from worker.cases import ALWAYS, MAX_TOKENS, MIXED, SAMPLING, TINY_ENGINE, oracle

ADVERSARIES = {
    "anti": {"drafter": "worker.fake_drafters:Constant", "drafter_args": {"token_ids": [3, 4, 5, 6]}},
    "illegal": {"drafter": "worker.fake_drafters:OutOfVocabulary", "drafter_args": {"token_id": TINY_VOCAB}},
    "negative": {"drafter": "worker.fake_drafters:OutOfVocabulary", "drafter_args": {"token_id": -1}},
    "ragged": {"drafter": "worker.fake_drafters:Ragged", "drafter_args": {"vocab_size": TINY_VOCAB}},
    "too_few": {"drafter": "worker.fake_drafters:WrongCount"},
    "raising": {"drafter": "worker.fake_drafters:Raising"},
    "hanging": {"drafter": "worker.fake_drafters:Hanging", "drafter_args": {"seconds": 10}},
    "ngram": {},
    "adaptive": {"adaptive": {"max_exploration": 0.5}},
}


def assert_same_tokens(result, expected, batches):
    for index, batch in enumerate(batches):
        for prompt, (got, want) in enumerate(zip(result.token_ids(index), expected.token_ids(index), strict=True)):
            assert got == want, f"batch {index} with {batch['params']}, prompt {prompt}"


def test_greedy_without_drafts_is_stock(without_drafts, stock):
    cut = [[sequence[:MAX_TOKENS] for sequence in prompt] for prompt in stock.token_ids(0)]
    assert without_drafts.token_ids(0) == cut


@pytest.mark.slow
def test_trees_with_the_answer_among_wrong_branches(run_tlt, batches, without_drafts, answers):
    result = run_tlt(batches, **oracle(answers))
    assert_same_tokens(result, without_drafts, batches)
    assert result.status["kv_moves"] > 100, "accepted rows no longer lie behind rejected ones"
    assert result.status["trees"]["truncated"] > 0, "the scheduler no longer cuts a tree"
    assert result.status["trees"]["mismatched"] == 0
    assert result.free_blocks[0] == result.free_blocks[1]


@pytest.mark.slow
def test_wide_trees_need_two_mask_words(run_tlt, batches, without_drafts, answers):
    result = run_tlt(
        batches[:1],
        {"max_num_batched_tokens": 512},
        num_speculative_tokens=120,
        **oracle(answers, depth=8, branching=8),
    )
    assert_same_tokens(result, without_drafts, batches[:1])
    assert result.status["largest_tree"] >= 64


@pytest.mark.slow
@pytest.mark.parametrize("name", ADVERSARIES)
def test_adversary(run_tlt, batches, without_drafts, name):
    few = [batches[0], batches[MIXED]]
    expected = [without_drafts.token_ids(0), without_drafts.token_ids(MIXED)]
    result = run_tlt(few, **{"adaptive": ALWAYS, **ADVERSARIES[name]})
    assert [result.token_ids(0), result.token_ids(1)] == expected
    assert result.free_blocks[0] == result.free_blocks[1]
    failures = result.status["drafter_failures"]
    assert failures > 0 if name in ("illegal", "negative", "too_few", "raising") else failures == 0
    if name == "ragged":
        assert result.status["drafts"] > 0


@pytest.mark.slow
def test_logprobs_are_those_of_the_emitted_tokens(run_tlt, batches, without_drafts, answers):
    index = list(SAMPLING).index("logprobs")
    result = run_tlt(
        [batches[0], batches[index]],
        drafter="worker.fake_drafters:Chain",
        adaptive=ALWAYS,
        drafter_args={"answers": answers, "length": 5},
    )
    for got, want in zip(result.batches[1], without_drafts.batches[index], strict=True):
        assert got[0]["token_ids"] == want[0]["token_ids"]
        assert len(got[0]["logprobs"]) == len(got[0]["token_ids"])
        for position, expected in zip(got[0]["logprobs"], want[0]["logprobs"], strict=True):
            assert position.keys() == expected.keys()
            for token_id, logprob in position.items():
                assert logprob == pytest.approx(expected[token_id], abs=1e-3)


@pytest.mark.slow
def test_prompt_logprobs_are_stocks_and_come_again_with_cached_prefixes(run_tlt, tiny_llama, prompts, answers):
    params = {"max_tokens": 8, "ignore_eos": True, "detokenize": False, "temperature": 0.0, "prompt_logprobs": 2}
    batch = {"prompts": prompts, "params": params}
    stock = run_engine(EngineJob(tiny_llama, [batch], engine=TINY_ENGINE))
    result = run_tlt([batch, batch], **oracle(answers))
    assert result.status["accepted_draft_tokens"] > 0
    for got in result.batches:
        for prompt, (mine, theirs) in enumerate(zip(got, stock.batches[0], strict=True)):
            assert mine[0]["token_ids"] == theirs[0]["token_ids"]
            assert len(mine[0]["prompt_logprobs"]) == len(prompts[prompt])
            for position, expected in zip(mine[0]["prompt_logprobs"], theirs[0]["prompt_logprobs"], strict=True):
                assert position == pytest.approx(expected, abs=1e-3)


@pytest.mark.slow
def test_right_chains_are_accepted_whole(run_tlt, batches, answers):
    """The drafter knows the answer: every draft is accepted, and vLLM's own metrics say the same as ours."""
    result = run_tlt(
        [batches[0]],
        {"max_num_batched_tokens": 512},
        drafter="worker.fake_drafters:Chain",
        adaptive=ALWAYS,
        drafter_args={"answers": answers, "length": 4},
    )
    assert result.status["acceptance_length"] > 4.8  # the last step of a request has less to accept
    assert result.metrics["vllm:spec_decode_num_drafts"] == result.status["drafts"]
    assert result.metrics["vllm:spec_decode_num_draft_tokens"] == result.status["draft_tokens"]
    assert result.metrics["vllm:spec_decode_num_accepted_tokens"] == result.status["accepted_draft_tokens"]


@pytest.mark.slow
def test_ranks_verify_the_same_trees(run_tlt, batches, without_drafts):
    """Rows are chosen by measured times, which differ from rank to rank: the first rank's choice must hold for all."""
    two_ranks = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    result = run_tlt([batches[MIXED]] * 2, {"tensor_parallel_size": 2}, two_ranks, adaptive={"max_exploration": 0.5})
    assert result.token_ids(0) == result.token_ids(1) == without_drafts.token_ids(MIXED)
    assert result.status["accepted_draft_tokens"] > 0
    assert result.status["trees"]["mismatched"] == 0


@pytest.mark.slow
def test_start_up_says_what_will_be_done(run_tlt, batches):
    log = run_tlt([batches[0]]).log
    for fact in (
        "drafter auto, up to 15 draft tokens",
        "prompt_lookup.suffix_trees",
        "relative cost by rows: 1: 1.00",
    ):
        assert fact in log


@pytest.mark.slow
def test_preemption_keeps_tokens_and_acceptance(run_tlt, batches, answers):
    """Eleven blocks for eight requests: requests are thrown out and come back."""
    few_blocks = {"num_gpu_blocks_override": 11, "max_model_len": 256}
    batch = [{**batches[0], "prompts": batches[0]["prompts"][7:]}]
    expected = run_tlt(batch, drafter="none")
    result = run_tlt(batch, few_blocks, **oracle(answers))
    assert result.metrics["vllm:num_preemptions"] > 0, "there are blocks enough"  # how many, measured times decide
    assert_same_tokens(result, expected, batch)
    assert result.status["acceptance_length"] > 2
    assert result.free_blocks[0] == result.free_blocks[1]


@pytest.mark.slow
def test_aborted_requests_leave_nothing_behind(run_tlt, batches, without_drafts, answers):
    aborting = {**batches[0], "abort_after": {"0": 3, "5": 6, "9": 9}}
    result = run_tlt([aborting, batches[0]], **oracle(answers))
    survivors = [i for i in range(len(batches[0]["prompts"])) if str(i) not in aborting["abort_after"]]
    assert [result.token_ids(0)[i] for i in survivors] == [without_drafts.token_ids(0)[i] for i in survivors]
    assert result.token_ids(1) == without_drafts.token_ids(0)
    assert result.status["trees"]["in_flight"] == 0
    assert result.free_blocks[0] == result.free_blocks[1]


@pytest.mark.slow
@pytest.mark.parametrize("max_num_seqs", [1, 2, 15])
def test_few_and_many_sequences(run_tlt, batches, without_drafts, answers, max_num_seqs):
    result = run_tlt([batches[0]], {"max_num_seqs": max_num_seqs}, **oracle(answers))
    assert_same_tokens(result, without_drafts, batches[:1])


@pytest.mark.slow
def test_seeded_request_is_reproducible_beside_unseeded_ones(run_tlt, prompts):
    base = {"max_tokens": 24, "ignore_eos": True, "detokenize": False, "temperature": 1.0}
    seeded = [{**base, "seed": 42} if i % 2 else base for i in range(16)]
    batch = {"prompts": [prompts[9]] * 16, "params": seeded}
    result = run_tlt([batch, batch])
    outputs = [sequence[0] for index in (0, 1) for sequence in result.token_ids(index)]
    assert len({tuple(output) for output in outputs[1::2]}) == 1
    assert len({tuple(output) for output in outputs[0::2]}) == 16


@pytest.mark.slow
def test_context_limit_is_reached_exactly(run_tlt, prompts, answers):
    """Prompts that leave room for 1, 2, 7, 8 and 9 tokens before max_model_len."""
    limit = 128
    longest = next(prompt for prompt in prompts if len(prompt) == 129)
    fitting = [longest[: limit - room] for room in (1, 2, 7, 8, 9)]
    batch = [
        {"prompts": fitting, "params": {"temperature": 0.0, "max_tokens": 64, "ignore_eos": True, "detokenize": False}}
    ]
    expected = run_tlt(batch, {"max_model_len": limit}, drafter="none")
    result = run_tlt(
        batch,
        {"max_model_len": limit},
        adaptive=ALWAYS,
        drafter="worker.fake_drafters:Ragged",
        drafter_args={"vocab_size": TINY_VOCAB},
    )
    assert [len(sequence[0]) for sequence in expected.token_ids(0)] == [1, 2, 7, 8, 9]
    assert_same_tokens(result, expected, batch)
