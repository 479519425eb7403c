"""Real servers: stock vLLM and vLLM with method ``tlt``, started with the command a user types."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

import pytest

from engine import REPOSITORY, TESTS
from models import MODEL_DIR

READY_WITHIN_S = 240


@contextmanager
def running_server(log_path, *arguments):
    """Starts ``vllm serve`` on the real model and yields its address; ends it afterwards."""
    if not (MODEL_DIR / "config.json").exists():
        pytest.skip("no real model; run 'make model'")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.cli.main",
        "serve",
        str(MODEL_DIR),
        "--served-model-name",
        "smol",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--dtype",
        "float32",
        "--enforce-eager",
        "--max-model-len",
        "512",
        "--max-num-seqs",
        "8",
        *arguments,
    ]
    environment = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(TESTS)]),
    }
    environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)  # all three processes, as a user has them
    with log_path.open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            yield wait_until_ready(server, f"http://127.0.0.1:{port}", log_path)
        finally:
            server.terminate()
            server.wait(timeout=60)


def wait_until_ready(server, address, log_path):
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(log_path.read_text()[-6000:])
        try:
            urllib.request.urlopen(f"{address}/health", timeout=2)
        except OSError:
            time.sleep(1)
        else:
            return address
    raise RuntimeError(f"no answer within {READY_WITHIN_S} s: {log_path.read_text()[-6000:]}")
