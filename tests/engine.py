"""Runs an engine in a fresh process and returns what it generated: ``run_engine(EngineJob(...))``."""

import json
import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import engine_child

TESTS = Path(__file__).parent
REPOSITORY = TESTS.parent

RUN_WITHIN_S = 600

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "INFO",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(TESTS)]),
}

IMPORTED_ONCE = ["vllm", "vllm.entrypoints.llm", "vllm.v1.worker.cpu_worker", "tlt_engine.worker.worker_cpu"]


@dataclass(frozen=True)
class EngineJob:
    """One engine and the batches it is given."""

    model: str
    batches: list[dict[str, Any]]
    """Each ``{"prompts": [[token ids]], "params": {...} or [{...}, ...], "abort_after": {"index": steps}}``."""
    speculative_config: dict[str, Any] | None = None
    engine: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of ``LLM`` beside the common ones."""
    environment: dict[str, str] = field(default_factory=dict)
    calls: list[tuple[int, int, str, list[Any]]] = field(default_factory=list)
    """RPC calls in mid-batch: batch, steps before the call, method, arguments."""
    samples_folder: str | None = None
    """Where to store what was recorded."""
    traces_drafts: bool = False
    """Whether to note the draft tokens that the scheduler holds after each step."""


@dataclass(frozen=True)
class EngineResult:
    """What came back."""

    batches: list[list[list[dict[str, Any]]]]
    """For each batch, prompt and sequence: ``token_ids``, ``logprobs``, ``prompt_logprobs``, ``finish_reason``,
    ``stop_reason``."""
    status: dict[str, Any] | None
    metrics: dict[str, float]
    free_blocks: tuple[int, int]
    """Free KV blocks before the first and after the last batch."""
    log: str
    drafts: list[tuple[str, int, list[int]]] = field(default_factory=list)
    """Request, tokens it has, and the draft tokens that follow them, of each step, if they were traced."""

    def token_ids(self, batch: int) -> list[list[list[int]]]:
        """Returns the tokens of each prompt's sequences."""
        return [[sequence["token_ids"] for sequence in prompt] for prompt in self.batches[batch]]


def run_engine(job: EngineJob) -> EngineResult:
    """Runs ``job`` in a fresh process.

    Raises:
        RuntimeError: the engine failed; the text is the end of its log.
    """
    with tempfile.TemporaryDirectory() as folder:
        result_path, log_path = Path(folder) / "result.json", Path(folder) / "log"
        with started_engine(job, result_path, log_path) as process:
            process.join(RUN_WITHIN_S)
        log = log_path.read_text()
        if process.exitcode or not result_path.exists():
            raise RuntimeError(f"exit code {process.exitcode}, or killed after {RUN_WITHIN_S} s: {log[-6000:]}")
        return EngineResult(**json.loads(result_path.read_text()), log=log)


@contextmanager
def started_engine(job: EngineJob, result_path: Path, log_path: Path) -> Iterator[BaseProcess]:
    """Starts ``job`` in a fresh process and yields the process; kills it if it still runs afterwards."""
    with patch.dict(os.environ, ENVIRONMENT | job.environment):
        # Most of a tiny engine's start is imports, which a server of forks has behind it; its environment is fixed.
        context = multiprocessing.get_context("spawn" if job.environment else "forkserver")
        context.set_forkserver_preload(IMPORTED_ONCE)
        arguments = (json.dumps(asdict(job)), str(result_path), str(log_path))
        process = context.Process(target=engine_child.main, args=arguments)
        process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
