"""The worker on CPU."""

from typing import Any

import vllm.v1.worker.cpu_worker as stock
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from tlt_engine.worker import attention_cpu
from tlt_engine.worker.model_runner import TreeRunnerMixin
from tlt_engine.worker.scoped_patches import replaced
from tlt_engine.worker.worker import TltWorkerMixin


class TltCPUModelRunner(TreeRunnerMixin, CPUModelRunner):  # type: ignore[misc]
    """Stock's CPU runner with trees."""

    attention = attention_cpu


class TltCPUWorker(TltWorkerMixin, stock.CPUWorker):  # type: ignore[misc]
    """Stock's CPU worker with our runner and attention."""

    def init_device(self) -> Any:
        """Builds our runner.

        Cause: ``CPUWorker`` names ``CPUModelRunner`` directly and ``CpuPlatform`` ignores ``--attention-backend``.
        Until: the CPU worker has the hook ``_make_model_runner`` that the CUDA one has.
        """
        register_backend(AttentionBackendEnum.CPU_ATTN, "tlt_engine.worker.attention_cpu.TreeCPUAttentionBackend")
        with replaced(stock, "CPUModelRunner", TltCPUModelRunner):
            return super().init_device()
