"""Engine settings and sampling parameters that the tests of the worker go through."""

from models import TINY_VOCAB

TINY_ENGINE = {"skip_tokenizer_init": True}

NUM_PROMPTS = 16
MAX_TOKENS = 32

SAMPLING = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.9, "seed": 5},
    "unseeded": {"temperature": 0.7},
    "top_p_top_k": {"temperature": 1.0, "seed": 6, "top_p": 0.9, "top_k": 40},
    "penalties": {
        "temperature": 0.8,
        "seed": 7,
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.2,
    },
    "greedy_penalties": {"temperature": 0.0, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
    "min_p": {"temperature": 1.2, "seed": 8, "min_p": 0.05},
    "logit_bias": {"temperature": 0.9, "seed": 9, "logit_bias": {"7": 4.0, "11": -100.0}},
    "min_tokens": {"temperature": 0.9, "seed": 10, "min_tokens": 12, "stop_token_ids": list(range(100, 160))},
    "bad_words": {"temperature": 0.0, "allowed_token_ids": list(range(5, 300))},
    "logprobs": {"temperature": 0.6, "seed": 11, "logprobs": 3},
    "several": {"temperature": 0.9, "seed": 12, "n": 3},
}
"""Sampling parameters by name; all but ``greedy`` are also mixed in one batch."""

MIXED = len(SAMPLING)
"""Index of the batch that holds all kinds at once."""


ALWAYS = {"policy": "fixed"}
"""Setting ``adaptive`` of engines that draft all they can in every step, whatever this machine's clock says."""


def only(drafter, **shape):
    """Setting ``adaptive`` of engines that always do one thing."""
    return {"policy": "fixed", "strategies": [{"drafter": drafter, **shape}]}


LEARNED_ALONE = {"adaptive": only("learned")}
"""Settings of engines that draft with the network and without look-up."""


def oracle(answers, **args):
    """Options of a drafter that knows the answers."""
    return {
        "adaptive": ALWAYS,
        "drafter": "worker.fake_drafters:TreeOracle",
        "drafter_args": {"answers": answers, "vocab_size": TINY_VOCAB, **args},
    }
