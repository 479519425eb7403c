"""What both workers share: RPC methods, the start-up table, and the target's version."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger

from tlt_engine import __version__
from tlt_engine.drafter_trainer.sample import Sample
from tlt_engine.worker.model_runner import TreeRunnerMixin
from tlt_engine.worker.platform_support import load_fitting_drafter

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_worker import Worker as StockWorker
else:
    StockWorker = object  # the platform's worker comes after the mixin

logger = init_logger(f"vllm.{__name__}")

MIB = 1 << 20


class TltWorkerMixin(StockWorker):
    """Mixed into stock's workers, before them; public methods are reachable with ``collective_rpc``."""

    model_runner: TreeRunnerMixin
    _target_version = 0

    def initialize_from_config(self, *args: Any, **kwargs: Any) -> Any:
        """Allocates the KV cache, then says once what speculation will do here."""
        result = super().initialize_from_config(*args, **kwargs)
        runner = self.model_runner
        proposer = runner.drafter
        logger.info(
            "tlt_engine %s: drafter %s, up to %d draft tokens a request and step",
            __version__,
            proposer.config.drafter,
            proposer.config.num_speculative_tokens,
        )
        if proposer.drafts and runner.tlt_chain_reason is not None:
            logger.warning("Draft trees are verified as chains: %s", runner.tlt_chain_reason)
        if proposer.drafts and runner.tlt_has_custom_processors:
            logger.warning("No drafts: a custom logits processor keeps its state per request, not per draft token")
        for name, (used, cap) in proposer.num_bytes().items():
            logger.info("Memory: %-32s %8.1f MiB of at most %8.1f MiB", name, used / MIB, cap / MIB)
        return result

    def reload_weights(self, *args: Any, **kwargs: Any) -> Any:
        """Reloads the target; what it wrote before is evicted first."""
        result = super().reload_weights(*args, **kwargs)
        self.tlt_target_updated()
        return result

    def finish_weight_update(self) -> None:
        """Ends an update of the target's weights; what it wrote before is evicted first."""
        super().finish_weight_update()
        self.tlt_target_updated()

    def tlt_target_updated(self) -> int:
        """Raises the target's version, for weight updates that vLLM does not announce; returns the new one."""
        self._target_version += 1
        self.model_runner.drafter.set_target_version(self._target_version)
        return self._target_version

    def tlt_take_samples(self) -> list[Sample]:
        """Returns what was recorded of the requests that ended since the last call; needs ``record_samples``."""
        recorder = self.model_runner.drafter.recorder
        if recorder is None:
            raise RuntimeError('nothing is recorded; set "record_samples": true in --speculative-config')
        return recorder.take_finished()

    def tlt_load_drafter(self, directory: str) -> None:
        """Replaces the learned drafter's weights by those of a checkpoint of the same shape and target."""
        checkpoint = load_fitting_drafter(Path(directory), self.model_config)
        self.model_runner.drafter.swap_weights(checkpoint)

    def tlt_status(self) -> dict[str, Any]:
        """Returns the state that ``/tlt/status`` shows: plain data, counted since the start."""
        runner = self.model_runner
        proposer = runner.drafter
        return {
            "version": __version__,
            "method": "tlt",
            "strategy": {
                "drafter": proposer.config.drafter if proposer.drafts else "none",
                "shape": "tree" if runner.tlt_chain_reason is None else "chain",
                "reason": runner.tlt_chain_reason,
                "num_speculative_tokens": proposer.config.num_speculative_tokens,
                "max_step_rows": proposer.config.max_step_rows,
            },
            "target_version": self._target_version,
            **runner.tlt_statistics.snapshot(),
            "trees": {
                "in_flight": len(runner.tlt_trees),
                "truncated": runner.tlt_trees.num_truncated,
                "mismatched": runner.tlt_trees.num_mismatched,
            },
            "drafter_failures": proposer.num_failures,
            "draft_seconds": proposer.draft_seconds,
            "tap_seconds": proposer.tap_seconds,
            "memory": {name: {"bytes": used, "cap": cap} for name, (used, cap) in proposer.num_bytes().items()},
        }
