"""What both workers share: RPC methods, the start-up table, and the target's version."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor
from vllm.logger import init_logger

from tlt_engine import __version__
from tlt_engine.drafter_trainer.sample import Sample
from tlt_engine.worker.background_training import BackgroundTraining
from tlt_engine.worker.model_runner import TreeRunnerMixin
from tlt_engine.worker.platform_support import load_fitting_drafter

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_worker import Worker as StockWorker
else:
    StockWorker = object  # the platform's worker comes after the mixin

logger = init_logger(f"vllm.{__name__}")

MIB = 1 << 20

TRAIN_MODES = ("auto", "on", "off")

SLEEP, UPDATE = "sleep", "weight update"
"""Why the trainer keeps still."""


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
        """Reloads the target while the trainer keeps still; what the target wrote before is evicted first."""
        with self._training_paused():
            result = super().reload_weights(*args, **kwargs)
        self.tlt_target_updated()
        self._release_training(UPDATE)
        return result

    def start_weight_update(self) -> None:
        """Begins an update of the target's weights; the trainer, which reads them, keeps still until it ends."""
        with self._training_held(UPDATE):
            super().start_weight_update()

    def start_draft_weight_update(self) -> None:
        """Begins an update of the drafter's weights; those of an earlier one that was not finished are forgotten."""
        super().start_draft_weight_update()
        self.model_runner.drafter.receiver.take()

    def finish_weight_update(self) -> None:
        """Ends an update: new weights of the target evict what it wrote before, those of the drafter go live.

        Raises:
            ValueError: the tensors that came in are not those of a drafter of this shape; the old ones stay.
        """
        is_draft = self._weight_update_is_draft
        super().finish_weight_update()
        if is_draft:
            self.model_runner.drafter.publish_tensors(self.model_runner.drafter.receiver.take())
        else:
            self.tlt_target_updated()
            self._release_training(UPDATE)

    def sleep(self, level: int = 1) -> None:
        """Sleeps; the trainer before, since it reads the target's weights, and on a GPU level 2 throws them away."""
        with self._training_held(SLEEP):
            super().sleep(level)
        if level == 2 and self.device.type != "cpu":
            self._hold_training(UPDATE)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Wakes up; the trainer after, once the target's weights are there."""
        super().wake_up(tags)
        if tags is None or "weights" in tags:
            self._release_training(SLEEP)

    def shutdown(self) -> None:
        """Ends the trainer's thread, then the worker."""
        if (training := self._training) is not None:
            training.close()
        super().shutdown()

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

    def tlt_publish(self, weights: str | dict[str, Tensor]) -> int:
        """Puts other weights into the learned drafter, between two steps; the background trainer goes on from them.

        Args:
            weights: directory of a drafter of the same shape and target, or a drafter's tensors by name.

        Returns:
            The drafter's version.

        Raises:
            ValueError: they do not fit; the weights in use stay.
        """
        proposer = self.model_runner.drafter
        if isinstance(weights, str):
            return proposer.publish(load_fitting_drafter(Path(weights), self.model_config).build())
        return proposer.publish_tensors(weights)

    def tlt_train(self, mode: str) -> str:
        """Switches the background trainer: ``auto``, ``on`` or ``off``; returns the mode.

        Raises:
            ValueError: there is no trainer, or no such mode.
        """
        if mode not in TRAIN_MODES:
            raise ValueError(f"mode: expected one of {list(TRAIN_MODES)}, got {mode!r}")
        if self._training is None:
            raise ValueError(f"there is no background trainer here: {self.model_runner.drafter.training_refusal}")
        self._training.set_mode(mode)
        return mode

    @property
    def _training(self) -> BackgroundTraining | None:
        runner = getattr(self, "model_runner", None)
        return runner.drafter.training if runner is not None and hasattr(runner, "drafter") else None

    def _training_paused(self) -> AbstractContextManager[None]:
        return self._training.paused() if self._training is not None else nullcontext()

    def _hold_training(self, reason: str) -> bool:
        return self._training is not None and self._training.hold(reason)

    @contextmanager
    def _training_held(self, reason: str) -> Iterator[None]:
        """Holds the trainer from before the body on; not if the body fails and nothing held it before."""
        is_new = self._hold_training(reason)
        try:
            yield
        except BaseException:
            if is_new:
                self._release_training(reason)
            raise

    def _release_training(self, reason: str) -> None:
        if self._training is not None:
            self._training.release(reason)

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
                "policy": proposer.config.adaptive.policy,
            },
            "target_version": self._target_version,
            "drafter_version": proposer.drafter_version,
            **runner.tlt_statistics.snapshot(),
            "trees": {
                "in_flight": len(runner.tlt_trees),
                "truncated": runner.tlt_trees.num_truncated,
                "mismatched": runner.tlt_trees.num_mismatched,
            },
            "training": self._training.status() if self._training is not None else None,
            "training_refusal": proposer.training_refusal,
            "adaptive": {
                **proposer.adaptive.snapshot(),
                "collapsed": proposer.drafters.alarm.reason,
                "collapses": proposer.drafters.alarm.num_alarms,
            },
            "drafter_failures": proposer.num_failures,
            "draft_seconds": proposer.draft_seconds,
            "tap_seconds": proposer.tap_seconds,
            "memory": {name: {"bytes": used, "cap": cap} for name, (used, cap) in proposer.num_bytes().items()},
        }
