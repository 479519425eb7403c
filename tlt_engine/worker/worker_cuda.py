"""The worker on CUDA: stock attention, so drafts are chains; sampling and acceptance run in our kernels."""

from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker

from tlt_engine.worker import attention_cuda
from tlt_engine.worker.model_runner import TreeRunnerMixin
from tlt_engine.worker.worker import TltWorkerMixin


class TltCUDAModelRunner(TreeRunnerMixin, GPUModelRunner):  # type: ignore[misc]
    """Stock's runner with our sampling."""

    attention = attention_cuda


class TltCUDAWorker(TltWorkerMixin, Worker):  # type: ignore[misc]
    """Stock's CUDA worker with our runner."""

    def _make_model_runner(self) -> GPUModelRunner:
        assert not self.use_v2_model_runner, "method 'custom_class' selects the V1 runner"
        return TltCUDAModelRunner(self.vllm_config, self.device)
