"""The worker on CPU."""

from typing import Any

import vllm.v1.worker.cpu_worker as stock
from vllm.logger import init_logger
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from tlt_engine.worker import attention_cpu
from tlt_engine.worker.model_runner import TreeRunnerMixin
from tlt_engine.worker.profile_cache import kept_or_measured
from tlt_engine.worker.scoped_patches import replaced
from tlt_engine.worker.step_profile import measure_step_profile
from tlt_engine.worker.worker import TltWorkerMixin

logger = init_logger(f"vllm.{__name__}")


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

    def compile_or_warm_up_model(self) -> Any:
        """Measures what rows cost once the model can run; elsewhere than on CPU the clock would see launches only."""
        times = super().compile_or_warm_up_model()
        runner = self.model_runner
        # Replicas would have to agree on every dummy step; with them the curve is learnt while serving.
        if runner.drafter.drafts and self.parallel_config.data_parallel_size == 1:
            most_rows = self.scheduler_config.max_num_seqs * (1 + runner.drafter.config.num_speculative_tokens)
            most_rows = min(most_rows, runner.drafter.config.max_step_rows or most_rows)
            profile = kept_or_measured(self.vllm_config, most_rows, lambda: measure_step_profile(runner, most_rows))
            runner.drafter.step_cost.set_profile(profile)
            runner.drafter.time_network()
            logger.info(
                "A step of 1 row takes %.1f ms; relative cost by rows: %s",
                1e3 * profile[1],
                ", ".join(f"{rows}: {seconds / profile[1]:.2f}" for rows, seconds in sorted(profile.items())),
            )
        return times
