"""Orders are taken only where they are enabled and allowed, and the metrics say what the worker says."""

import asyncio
import http.server
import json
import threading
from argparse import Namespace
from types import SimpleNamespace

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client import REGISTRY

from tlt_engine.cli.main import main
from tlt_engine.config import TltConfig
from tlt_engine.server import endpoints
from tlt_engine.server.metrics import METRICS, Metrics

TRAINING = {
    "phase": "training",
    "is_computing": True,
    "steps": 12,
    "tokens": 6000,
    "loss": 2.5,
    "held_out_acceptance_length": 1.7,
    "live_acceptance_length": 1.6,
    "buffer": {"bytes": 1000, "dropped": {"no room": 3}},
    "skipped": {"nothing to learn": 2},
    "publications": {"published": 2, "rolled_back": 1, "not_better": 0},
    "trained_seconds": 30.0,
    "available_seconds": 40.0,
    "slowdown": 0.03,
    "failures": 1,
}
ADAPTIVE = {
    "steps": {"none": 5, "both-d4-k4-w16": 15},
    "estimates": {"none": {"speedup": 1.0, "deviation": 0.01, "steps": 5}},
    "switches": 3,
    "bucket": 4,
    "exploration_share": 0.01,
    "collapses": 1,
    "seconds": {"draft": 0.5, "target": 3.0, "other": 0.25, "steps": 20},
}
STATE = {
    "acceptance_length": 2.1,
    "acceptance_rate_by_depth": [0.7, 0.4],
    "sources": {"learned": {"draft_tokens": 10, "accepted": 4, "hit_rate": 0.4}},
    "adaptive": ADAPTIVE,
    "drafter_version": 2,
    "target_version": 1,
    "drafter_failures": 0,
    "training": TRAINING,
    "training_refusal": None,
}


class Engine:
    """Answers RPC calls as a worker does."""

    def __init__(self, state=STATE, **options):
        self.state = state
        self.calls = []
        config = None if options is None else {"tlt": TltConfig.from_user(options).to_builtins()}
        self.vllm_config = SimpleNamespace(additional_config=config)

    async def collective_rpc(self, method, args=()):
        self.calls.append((method, *args))
        return [self.state]


@pytest.fixture
def client_of(monkeypatch):
    class NoMetrics:
        async def follow(self, engine):
            pass

    monkeypatch.setattr(endpoints, "Metrics", NoMetrics)

    def make(engine, api_key=None):
        app = FastAPI()
        plugin = endpoints.TltEndpoints()
        plugin.attach_router(app)
        asyncio.run(plugin.init_state(engine, app.state, Namespace(api_key=api_key)))
        return TestClient(app)

    return make


def test_a_server_without_us_has_no_such_routes(client_of):
    client = client_of(SimpleNamespace(vllm_config=SimpleNamespace(additional_config={})))
    assert client.get("/tlt/status").status_code == 404
    assert client.post("/tlt/train", json={"mode": "on"}).status_code == 404


def test_orders_are_off_unless_enabled(client_of):
    engine = Engine()
    answer = client_of(engine).post("/tlt/train", json={"mode": "off"})
    assert answer.status_code == 403
    assert "admin_routes" in answer.json()["detail"]
    assert engine.calls == []


@pytest.mark.parametrize(
    ("header", "code"), [({}, 401), ({"Authorization": "Bearer other"}, 401), ({"Authorization": "Bearer second"}, 200)]
)
def test_orders_need_the_key_where_the_server_has_one(client_of, header, code):
    engine = Engine(admin_routes=True)
    client = client_of(engine, api_key=["first", "second"])
    assert client.post("/tlt/train", json={"mode": "off"}, headers=header).status_code == code
    assert (("tlt_train", "off") in engine.calls) == (code == 200)


@pytest.mark.parametrize("body", ["", "{}", '{"mode": "sometimes"}', '{"mode": "on", "x": 1}', "[]"])
def test_what_is_no_order_is_refused_with_what_would_be(client_of, body):
    answer = client_of(Engine(admin_routes=True)).post("/tlt/train", content=body)
    assert answer.status_code == 400
    assert '{"mode": "auto"}' in answer.json()["detail"]


def test_an_engine_without_a_trainer_says_why(client_of):
    state = STATE | {"training": None, "training_refusal": "train.enabled is false"}
    answer = client_of(Engine(state, admin_routes=True)).post("/tlt/train", json={"mode": "on"})
    assert answer.status_code == 409
    assert "train.enabled is false" in answer.json()["detail"]


def sample(name, **labels):
    return REGISTRY.get_sample_value(name, labels)


def test_metrics_follow_the_state():
    metrics = Metrics()
    metrics.update(STATE)
    metrics.update(STATE | {"training": TRAINING | {"phase": "converged", "trained_seconds": 35.0, "loss": None}})
    assert sample("tlt:acceptance_length") == 2.1
    assert sample("tlt:training_seconds_total") == 35.0
    assert sample("tlt:training_evaluations_total", outcome="rolled_back") == 1
    assert sample("tlt:training_dropped_samples_total", reason="no room") == 3
    assert sample("tlt:training_phase", phase="converged") == 1
    assert sample("tlt:training_phase", phase="training") == 0
    assert sample("tlt:training_loss") == 2.5
    assert sample("tlt:strategy_steps_total", strategy="both-d4-k4-w16") == 15
    assert sample("tlt:strategy_speedup", strategy="none") == 1.0
    assert sample("tlt:strategy_switches_total") == 3
    assert sample("tlt:strategy_bucket") == 4
    assert sample("tlt:exploration_share") == 0.01
    assert sample("tlt:drafter_collapses_total") == 1
    assert sample("tlt:step_seconds_total", part="draft") == 0.5
    assert sample("tlt:acceptance_rate_by_depth", depth="2") == 0.4
    assert sample("tlt:acceptance_rate_by_source", source="learned") == 0.4
    metrics.update(STATE | {"training": None, "acceptance_length": None, "adaptive": {"seconds": ADAPTIVE["seconds"]}})
    assert all(metric.name.startswith("tlt:") for metric in METRICS)


@pytest.fixture
def server():
    """A server that answers as its handler is told to, and notes what it was sent."""
    seen = []

    class Handler(http.server.BaseHTTPRequestHandler):
        answer = (200, b"{}")

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((self.path, json.loads(body), self.headers.get("Authorization")))
            self.send_response(self.answer[0])
            self.end_headers()
            self.wfile.write(self.answer[1])

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}", seen, Handler
        running.shutdown()


def run(*arguments):
    with pytest.raises(SystemExit) as exit_info:
        main(["train", *arguments])
    return exit_info.value.code


def test_the_command_sends_the_order_with_the_key(server):
    url, seen, _ = server
    assert run("off", "--url", url + "/", "--api-key", "secret") == 0
    assert run("auto", "--url", url) == 0
    assert seen == [("/tlt/train", {"mode": "off"}, "Bearer secret"), ("/tlt/train", {"mode": "auto"}, None)]


def test_the_command_says_why_it_was_refused(server):
    url, _, handler = server
    handler.answer = (403, b'{"detail": "orders are off"}')
    assert run("on", "--url", url) == f"tlt-engine: {url} refuses: orders are off"
    handler.answer = (502, b"<html>bad gateway")
    assert run("on", "--url", url) == f"tlt-engine: {url} refuses: 502 <html>bad gateway"
    assert "expected an address" in run("on", "--url", "localhost:8000")
    assert "does not answer" in run("on", "--url", "http://127.0.0.1:9")
