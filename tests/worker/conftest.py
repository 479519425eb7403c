"""A tiny target, prompts that reach every path of the scheduler, and answers for the drafters that know them."""

import json
import random

import pytest

from engine import EngineJob, EngineResult, run_engine
from models import TINY_VOCAB, make_tiny_llama
from tlt_engine.drafter_trainer.sample_store import SampleStore
from worker.cases import MAX_TOKENS, NUM_PROMPTS, SAMPLING, TINY_ENGINE, oracle
from worker.tiny_drafters import make_drafters


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory):
    return str(make_tiny_llama(tmp_path_factory.mktemp("tiny_llama")))


@pytest.fixture(scope="session")
def prompts():
    """Lengths 1-120 around the 64-token prefill budget; some share a prefix, some repeat themselves."""
    rng = random.Random(7)
    shared = [rng.randrange(3, TINY_VOCAB) for _ in range(70)]
    lengths = [1, 2, 3, 63, 64, 65, 129] + [rng.randint(4, 120) for _ in range(NUM_PROMPTS - 7)]
    made = []
    for i, length in enumerate(lengths):
        prompt = [rng.randrange(3, TINY_VOCAB) for _ in range(length)]
        if i >= 7 and i % 3 == 0:
            prompt = shared + prompt[:20]
        if i >= 7 and i % 4 == 1:
            prompt = (prompt[:8] * 8)[:60]
        made.append(prompt)
    return made


@pytest.fixture(scope="session")
def batches(prompts):
    """One batch for each kind of sampling, then all kinds in one batch, then the first again (cached prefixes)."""
    base = {"max_tokens": MAX_TOKENS, "ignore_eos": True, "detokenize": False}
    single = [{"prompts": prompts, "params": {**base, **params}} for params in SAMPLING.values()]
    kinds = [params for name, params in SAMPLING.items() if name != "unseeded"]
    mixed = {"prompts": prompts, "params": [{**base, **kinds[i % len(kinds)]} for i in range(len(prompts))]}
    return [*single, mixed, single[0]]


@pytest.fixture(scope="session")
def stock(tiny_llama, prompts):
    """Stock vLLM without speculation, greedy."""
    params = {"max_tokens": MAX_TOKENS + 8, "ignore_eos": True, "detokenize": False, "temperature": 0.0}
    return run_engine(EngineJob(tiny_llama, [{"prompts": prompts, "params": params}], engine=TINY_ENGINE))


@pytest.fixture(scope="session")
def answers(stock, prompts, tmp_path_factory):
    """File with the target's greedy continuation of each prompt, for the drafters that know it."""
    path = tmp_path_factory.mktemp("answers") / "answers.json"
    outputs = [sequences[0] for sequences in stock.token_ids(0)]
    path.write_text(json.dumps(list(zip(prompts, outputs, strict=True))))
    return str(path)


@pytest.fixture(scope="session")
def run_tlt(tiny_llama):
    """Runs the tiny target with method ``tlt``."""

    def run(batches, engine=None, environment=None, **options) -> EngineResult:
        settings = {**TINY_ENGINE, **(engine or {})}
        return run_engine(EngineJob(tiny_llama, batches, {"method": "tlt", **options}, settings, environment or {}))

    return run


@pytest.fixture(scope="session")
def without_drafts(run_tlt, batches):
    """TLT that never drafts: what every drafter must reproduce."""
    return run_tlt(batches, drafter="none")


@pytest.fixture(scope="session")
def recorded(tiny_llama, batches, answers, tmp_path_factory):
    """Greedy and sampled text, with trees, chunked prefills, cached prefixes and an abort: the run and its samples."""
    folder = tmp_path_factory.mktemp("samples")
    job = EngineJob(
        tiny_llama,
        [batches[0], batches[1], {**batches[0], "abort_after": {"3": 6}}],
        {"method": "tlt", "record_samples": True, **oracle(answers)},
        TINY_ENGINE,
        samples_folder=str(folder),
    )
    return run_engine(job), list(SampleStore(folder))


@pytest.fixture(scope="session")
def drafters(tiny_llama, recorded, tmp_path_factory):
    """Two drafters of one shape: trained on what was recorded, and untrained."""
    return make_drafters(tiny_llama, recorded[1], tmp_path_factory.mktemp("drafters"))
