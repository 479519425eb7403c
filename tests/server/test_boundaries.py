"""Where a response ends inside an accepted run, ids, text, logprobs and usage are cut exactly where stock cuts them.

The drafter knows the answers and drafts seven right tokens, so the run after the first token covers output tokens 1-8.
"""

import json
import urllib.error
import urllib.request

import pytest
from openai import OpenAI
from transformers import AutoTokenizer

from benchmarks.prompts import MATH_TASKS, make_prompts
from server.conftest import running_server

pytestmark = pytest.mark.e2e

OFFSETS = range(1, 9)
MAX_MODEL_LEN = 512
MARKERS = json.dumps({"reasoning_start_str": "<repo_name>", "reasoning_end_str": "<file_sep>"})
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}, "unit": {"enum": ["legs", "apples"]}},
    "required": ["answer", "unit"],
    "additionalProperties": False,
}


def ask(client, request, stream):
    """One completion as plain data: what a client can see of it."""
    body = {"logprobs": 2, "temperature": 0.0, "max_tokens": 24, **request}
    extra = {"return_token_ids": True, **body.pop("extra", {})}
    answer = client.completions.create(
        model="smol",
        stream=stream,
        extra_body=extra,
        **body,
        **({"stream_options": {"include_usage": True}} if stream else {}),
    )
    chunks = list(answer) if stream else [answer]
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    logprobs = [value for choice in choices if choice.logprobs for value in choice.logprobs.token_logprobs]
    return {
        "text": "".join(choice.text for choice in choices),
        "token_ids": [token for choice in choices for token in (choice.token_ids or [])],
        "logprobs": logprobs,
        "finish_reason": choices[-1].finish_reason,
        "stop_reason": getattr(choices[-1], "stop_reason", None),
        "usage": [chunk.usage.completion_tokens for chunk in chunks if chunk.usage][-1],
    }


def boundary_requests(client, tokenizer):
    """Requests whose response ends at each offset of a run, by name; made with stock's own answers."""
    question = make_prompts(str(tokenizer.name_or_path), MATH_TASKS, 6)[0]
    answer = ask(client, {"prompt": question, "max_tokens": 40}, stream=False)["token_ids"]
    prompts = make_prompts(str(tokenizer.name_or_path), MATH_TASKS, 16)
    answers = client.completions.create(
        model="smol", prompt=prompts, max_tokens=80, temperature=0.0, extra_body={"return_token_ids": True}
    )
    ending_prompt, ending = next(
        (prompt, choice.token_ids)
        for prompt, choice in zip(prompts, answers.choices, strict=True)
        if choice.token_ids[-1] == tokenizer.eos_token_id
    )
    requests = {"undisturbed": {"prompt": question, "max_tokens": 40}}
    for offset in OFFSETS:
        piece = tokenizer.decode(answer[offset : offset + 1])
        requests |= {
            f"max_tokens {offset}": {"prompt": question, "max_tokens": offset},
            f"stop token {offset}": {"prompt": question, "extra": {"stop_token_ids": [answer[offset]]}},
            f"min_tokens {offset}": {
                "prompt": question,
                "extra": {"stop_token_ids": answer[:10], "min_tokens": offset},
            },
            f"stop string {offset}": {"prompt": question, "stop": [piece]},
            f"stop string kept {offset}": {
                "prompt": question,
                "stop": [tokenizer.decode(answer[offset : offset + 2])],
                "extra": {"include_stop_str_in_output": True},
            },
            f"end of text {offset}": {"prompt": ending_prompt + ending[: len(ending) - 1 - offset]},
            f"max_model_len {offset}": {
                "prompt": (question * 20)[: MAX_MODEL_LEN - offset - len(question)] + question,
                "max_tokens": 64,
                "extra": {"ignore_eos": True},
            },
            f"thinking budget {offset}": {
                "prompt": [*question, tokenizer.convert_tokens_to_ids("<repo_name>")],
                "extra": {"thinking_token_budget": offset},
            },
            f"end of JSON {offset}": {
                "prompt": question + answer[: offset - 1],
                "max_tokens": 60,
                "extra": {"structured_outputs": {"json": SCHEMA}},
            },
        }
    return requests


@pytest.fixture(scope="module")
def tokenizer():
    from models import MODEL_DIR

    return AutoTokenizer.from_pretrained(MODEL_DIR)


@pytest.fixture(scope="module")
def stock_answers(tmp_path_factory, tokenizer):
    """Requests and what stock answers to each."""
    log = tmp_path_factory.mktemp("stock") / "server.log"
    with running_server(log, "--reasoning-config", MARKERS) as address:
        client = OpenAI(base_url=f"{address}/v1", api_key="none")
        requests = boundary_requests(client, tokenizer)
        answers = {name: ask(client, request, stream=False) for name, request in requests.items()}
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{address}/tlt/status")
    return requests, answers


@pytest.fixture(scope="module")
def tlt_server(tmp_path_factory, stock_answers):
    """A server whose drafter knows stock's longest answer to each prompt."""
    requests, answers = stock_answers
    longest: dict[tuple[int, ...], list[int]] = {}
    for name, request in requests.items():
        prompt = tuple(request["prompt"])
        longest[prompt] = max(longest.get(prompt, []), answers[name]["token_ids"], key=len)
    folder = tmp_path_factory.mktemp("tlt")
    known = folder / "answers.json"
    known.write_text(json.dumps(list(longest.items())))
    drafter = {
        "drafter": "worker.fake_drafters:Chain",
        "drafter_args": {"answers": str(known), "length": 7},
        "adaptive": {"policy": "fixed"},
    }
    with running_server(
        folder / "server.log",
        "--reasoning-config",
        MARKERS,
        "--speculative-model",
        "tlt",
        "--speculative-config",
        json.dumps(drafter),
    ) as address:
        yield address


def test_every_boundary_is_cut_where_stock_cuts_it(stock_answers, tlt_server):
    requests, answers = stock_answers
    client = OpenAI(base_url=f"{tlt_server}/v1", api_key="none")
    wrong = []
    for name, request in requests.items():
        for stream in (False, True):
            got = ask(client, request, stream)
            if got | {"logprobs": pytest.approx(got["logprobs"], abs=2e-3)} != answers[name]:
                wrong.append((name, "stream" if stream else "whole", got, answers[name]))
    assert not wrong, wrong[:3]
    lengths = {name: answer["usage"] for name, answer in answers.items()}
    assert [lengths[f"max_model_len {offset}"] for offset in OFFSETS] == list(OFFSETS)
    assert [lengths[f"end of text {offset}"] for offset in OFFSETS] == [offset + 1 for offset in OFFSETS]
    ended = [answers[f"end of JSON {offset}"] for offset in OFFSETS]
    ended = [answer["text"] for answer in ended if answer["finish_reason"] == "stop"]
    assert len(ended) >= 5, "too few objects end before max_tokens"
    assert all(json.loads(text) for text in ended)


def test_status_and_metrics_agree_after_serving(stock_answers, tlt_server):
    client = OpenAI(base_url=f"{tlt_server}/v1", api_key="none")
    ask(client, stock_answers[0]["undisturbed"], stream=False)
    status = json.loads(urllib.request.urlopen(f"{tlt_server}/tlt/status").read())
    metrics = {}
    for line in urllib.request.urlopen(f"{tlt_server}/metrics").read().decode().splitlines():
        if line.startswith("vllm:spec_decode_") and "_per_pos" not in line and "_created" not in line:
            metrics[line.split("{")[0]] = float(line.rsplit(" ", 1)[1])
    assert status["method"] == "tlt"
    assert status["strategy"]["shape"] == "tree"
    assert status["acceptance_length"] > 3
    # A request that the front end takes back for a stop string leaves the scheduler while its last step runs: that
    # step is in our counts only.
    for name, ours in (
        ("num_drafts", "drafts"),
        ("num_draft_tokens", "draft_tokens"),
        ("num_accepted_tokens", "accepted_draft_tokens"),
    ):
        assert 0.85 * status[ours] <= metrics[f"vllm:spec_decode_{name}_total"] <= status[ours], name
