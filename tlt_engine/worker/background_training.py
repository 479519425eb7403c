"""The background trainer inside a worker: what feeds it, when it runs, and how its weights go live."""

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.logger import init_logger

from tlt_engine.config import TltConfig
from tlt_engine.drafter.checkpoint import Provenance, save_checkpoint
from tlt_engine.drafter.config import DrafterConfig
from tlt_engine.drafter.model import DrafterModel
from tlt_engine.drafter.runtime import DrafterRuntime, PreparedModel
from tlt_engine.drafter_trainer.checkpoints import TrainingCheckpoints
from tlt_engine.drafter_trainer.coordinator import Coordinator
from tlt_engine.drafter_trainer.governor import Governor
from tlt_engine.drafter_trainer.idle_gate import IdleGate
from tlt_engine.drafter_trainer.publication import CoordinatorConfig, Publication
from tlt_engine.drafter_trainer.sample_buffer import SampleBuffer
from tlt_engine.spec.step_cost import StepCost
from tlt_engine.worker.drafter_origin import DrafterOrigin, StartingPoint
from tlt_engine.worker.sample_recorder import RecordingLimits, SampleRecorder
from tlt_engine.worker.training_thread import TrainingThread

logger = init_logger(f"vllm.{__name__}")

RECORDING_SHARE = 0.25
"""Of the buffer's cap, what running requests may hold besides."""

STATE_COPIES = 11
"""Of the drafter's weights in float32: trained, gradient, average, candidate, live, at most two of the optimizer, and
four of what training rolls back to."""

CONTEXT_TOKENS, SPAN_TOKENS = 128, 384
"""Of a sample that a running request leaves: tokens that are only seen, and tokens that are learnt."""


class BackgroundTraining:
    """Owns the trainer's thread; everything public is called between two steps of the engine."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        config: TltConfig,
        runtime: DrafterRuntime,
        embed: Any,
        target: Any,
        step_cost: StepCost,
        served: StartingPoint,
    ) -> None:
        """Starts the thread, which waits for text.

        Args:
            vllm_config: of the engine.
            config: ours.
            runtime: drafts with what is published.
            embed: the target's embedding.
            target: the target; its head is read where it is.
            step_cost: what a step is expected to take.
            served: the drafter that is served at the start, if one is.
        """
        self.config = config.train
        self._runtime = runtime
        self._origin = DrafterOrigin(vllm_config.model_config, runtime, target, embed, config.train)
        self._initial = served.build(runtime.device)
        self._holds: set[str] = set()
        self._step_cost = step_cost
        self._pending: tuple[PreparedModel, Publication] | None = None
        with torch.device("meta"):
            self._num_weights = sum(weight.numel() for weight in DrafterModel(runtime.config).parameters())
        self._was_computing = False
        self.swap_seconds = 0.0
        self.longest_swap_seconds = 0.0
        scheduler = vllm_config.scheduler_config
        max_running = self.config.max_running or max(1, scheduler.max_num_seqs // 8)
        self.gate = IdleGate(max_running)
        self.gate.mode = self.config.mode
        self.governor = Governor(self.config.max_slowdown)
        self._directory = checkpoint_directory(config, vllm_config)
        self._checkpoints = TrainingCheckpoints(self._directory) if self._directory is not None else None
        self.coordinator = Coordinator(
            SampleBuffer(self.config.buffer_bytes),
            lambda samples: self._origin.build_trainer(samples, self._initial),
            self._origin.look_up,
            self._publish,
            CoordinatorConfig(depth=config.learned.draft_depth),
            live=self._initial,
            state=self._checkpoints.load() if self._checkpoints is not None and served.is_kept else None,
        )
        limits = RecordingLimits(
            max_bytes=int(self.config.buffer_bytes * RECORDING_SHARE),
            context_tokens=CONTEXT_TOKENS,
            span_tokens=SPAN_TOKENS,
            max_running=config.learned.capture_threshold,
        )
        self.recorder = SampleRecorder(limits, self.coordinator.inbox.put)
        self._thread = TrainingThread(
            self.coordinator.advance,
            self.gate,
            self.governor,
            device=runtime.device,
            num_engine=torch.get_num_threads(),
        )
        self._thread.start()

    def begin_step(self, num_running: int, is_decode_only: bool) -> None:
        """Notes that a step began; see ``IdleGate.begin_step``."""
        self.gate.begin_step(num_running, is_decode_only)
        self._was_computing = self._thread.is_computing

    def end_step(self, decoded: tuple[int, int] | None) -> Publication | None:
        """Notes what the step under way took, and puts weights that wait into place.

        Args:
            decoded: rows the target computed and the committed tokens they read; None if a prompt was computed.

        Returns:
            What went live.
        """
        seconds = self.gate.end_step()
        if decoded is not None:
            expected = self._step_cost.predict(*decoded)
            self.governor.record(seconds / expected, self._was_computing or self._thread.is_computing)
        return self._swap() if self._pending is not None else None

    def set_mode(self, mode: str) -> None:
        """Trains when there is time (``auto``), whenever there is something to learn (``on``), or never (``off``)."""
        self.gate.mode = mode
        self._thread.revive()

    def set_target_version(self, target_version: int) -> None:
        """Lets samples and training follow a target whose weights changed."""
        with self.paused():
            self.recorder.set_target_version(target_version)
            self.coordinator.follow_new_target()

    def adopt(self, model: DrafterModel) -> None:
        """Goes on from weights that somebody else published."""
        model = model.float().requires_grad_(False).to(self._runtime.device)
        with self.paused():
            self._pending = None
            self._initial = model
            self.coordinator.adopt(model)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keeps the trainer still, as while the target's weights are replaced."""
        with self._thread.paused():
            yield

    def hold(self, reason: str) -> bool:
        """Stops training until the reason is gone, and frees what the step under way holds.

        Returns:
            Whether the reason is new; twice is as once.
        """
        is_new = reason not in self._holds
        if is_new:
            self._holds.add(reason)
            self.gate.hold()
        with self._thread.paused():
            self.coordinator.abandon()
        return is_new

    def release(self, reason: str) -> None:
        """Ends a ``hold``, if there is one for this reason."""
        if reason in self._holds:
            self._holds.remove(reason)
            self.gate.release()

    def close(self) -> None:
        """Ends the thread."""
        self._thread.close()
        if self._checkpoints is not None:
            self._checkpoints.close()

    def num_bytes(self) -> dict[str, tuple[int, int]]:
        """Returns the bytes in use and the cap of each buffer."""
        buffer = self.coordinator.buffer
        state_bytes = STATE_COPIES * self._num_weights * torch.float32.itemsize
        return {
            "trainer.weights": (state_bytes if self.coordinator.trainer is not None else 0, state_bytes),
            "trainer.samples": (buffer.num_bytes, buffer.max_bytes),
            "trainer.inbox": (self.coordinator.inbox.num_bytes(), self.coordinator.inbox.max_bytes),
            "trainer.recording": self.recorder.num_bytes(),
        }

    def status(self) -> dict[str, Any]:
        """Returns plain data for ``/tlt/status``."""
        thread, checkpoints = self._thread, self._checkpoints
        return {
            **self.coordinator.status(),
            "mode": self.gate.mode,
            "occupancy": self.gate.occupancy.value,
            "held_by": sorted(self._holds),
            "is_computing": thread.is_computing,
            "pieces": thread.num_pieces,
            "trained_seconds": thread.trained_seconds,
            "available_seconds": self.gate.open_seconds(),
            "slowdown": self.governor.slowdown,
            "duty": self.governor.duty,
            "swap_seconds": self.swap_seconds,
            "longest_swap_seconds": self.longest_swap_seconds,
            "is_alive": thread.is_alive,
            "failures": thread.num_failures,
            "last_error": thread.last_error,
            "checkpoints": {
                "written": checkpoints.num_written if checkpoints else 0,
                "failed": checkpoints.num_failed if checkpoints else 0,
            },
        }

    def _swap(self) -> Publication:
        assert self._pending is not None
        (prepared, publication), self._pending = self._pending, None
        started = time.perf_counter()
        self._runtime.swap(prepared)
        seconds = time.perf_counter() - started
        self.swap_seconds += seconds
        self.longest_swap_seconds = max(self.longest_swap_seconds, seconds)
        logger.info(
            "Drafter version %d is live: acceptance length %.2f on held-out text after %d tokens of training",
            publication.version,
            publication.acceptance.length,
            publication.num_tokens,
        )
        return publication

    def _publish(self, publication: Publication) -> None:
        """Makes the weights ready on the trainer's thread; the next step takes them."""
        self._pending = self._runtime.prepare(copy.deepcopy(publication.model)), publication
        if self._checkpoints is not None:
            provenance = self._origin.provenance(publication)
            self._checkpoints.save(
                publication.version, publication.state, also=lambda: self._keep(publication.model, provenance)
            )

    def _keep(self, model: DrafterModel, provenance: Provenance) -> None:
        assert self._directory is not None
        save_checkpoint(self._directory, model, provenance)


def checkpoint_directory(config: TltConfig, vllm_config: VllmConfig) -> Path | None:
    """Returns where the training is kept, if it is; replicas each keep their own."""
    if config.train.checkpoint_dir is None:
        return None
    # Replicas of dense targets are told that they are alone, all but their index.
    index = vllm_config.parallel_config.data_parallel_index
    directory = Path(config.train.checkpoint_dir)
    return directory if index == 0 else directory / f"replica-{index}"


def training_refusal(config: TltConfig, vllm_config: VllmConfig) -> str | None:
    """Returns why no drafter is trained in the background, or None if one is."""
    if config.record_samples:
        return "what is generated is recorded for a warm-up"
    if config.drafter != "auto" and not config.is_learned:
        return f"drafter {config.drafter!r} has nothing to train"
    if config.train.enabled is False:
        return "train.enabled is false"
    if config.train.enabled is None and vllm_config.device_config.device_type != "cpu":
        return "it was only ever tried on CPU; train.enabled true tries it here"
    if vllm_config.parallel_config.tensor_parallel_size > 1:
        return "with tensor parallelism no rank holds the whole head of the target"
    try:
        DrafterConfig.from_target(vllm_config.model_config.hf_text_config)
    except ValueError as error:
        return str(error)
    return None
