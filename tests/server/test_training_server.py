"""A server that trains its drafter while it serves, takes orders with its key, and ends at once."""

import json
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import OpenAI

from server.conftest import running_server

pytestmark = pytest.mark.e2e

KEY = "secret"
OPTIONS = json.dumps({"admin_routes": True, "train": {"mode": "on", "buffer_bytes": 64 << 20}})
TRAINS_WITHIN_S = 400


def get(address):
    with urllib.request.urlopen(address) as answer:
        return answer.read().decode()


def order(address, mode, key=KEY):
    request = urllib.request.Request(
        f"{address}/tlt/train", json.dumps({"mode": mode}).encode(), {"Authorization": f"Bearer {key}"}
    )
    urllib.request.urlopen(request).close()


def training(address):
    return json.loads(get(f"{address}/tlt/status"))["training"]


def metric(text, name):
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def test_training_beside_serving(tmp_path):
    log = tmp_path / "server.log"
    arguments = ("--speculative-model", "tlt", "--speculative-config", OPTIONS, "--api-key", KEY)
    with running_server(log, *arguments) as address:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            order(address, "off", key="guess")
        assert training(address)["mode"] == "on"
        client = OpenAI(base_url=f"{address}/v1", api_key=KEY)

        def ask(number):
            prompt = f"Count from {number} to {number + 40}, then explain what the number {number} is good for:"
            return client.completions.create(
                model="smol", prompt=prompt, max_tokens=120, temperature=number % 2, seed=number
            )

        deadline = time.monotonic() + TRAINS_WITHIN_S
        number = 0
        with ThreadPoolExecutor(8) as pool:
            while training(address)["steps"] < 1:
                assert time.monotonic() < deadline, training(address)
                answers = list(pool.map(ask, range(number, number + 8)))
                assert all(answer.usage.completion_tokens > 0 for answer in answers)
                number += 8
                time.sleep(3)  # an idle engine leaves the trainer all cores
        order(address, "off")
        stopped = training(address)
        assert stopped["mode"] == "off"
        assert stopped["failures"] == 0
        assert stopped["buffer"]["bytes"] <= stopped["buffer"]["cap"]
        time.sleep(6)  # metrics are fetched every five seconds
        metrics = get(f"{address}/metrics")
        assert metric(metrics, "tlt:training_steps") >= 1
        assert metric(metrics, "tlt:training_seconds_total") > 0
        assert metric(metrics, "tlt:training_buffer_bytes") > 0
        assert training(address)["pieces"] <= stopped["pieces"] + 1, "off is off"
        order(address, "on")
        begun = time.monotonic()
    assert time.monotonic() - begun < 20, "a trainer at work does not hold the end up"
    # vLLM's front end may log that the engine it has just ended is gone; of the engine itself nothing may fail.
    engine = [line for line in log.read_text().splitlines() if line.startswith(("(EngineCore", "(Worker"))]
    assert any("Memory: trainer" in line for line in engine), "these are not the engine's lines"
    assert not [line for line in engine if "Traceback" in line]
