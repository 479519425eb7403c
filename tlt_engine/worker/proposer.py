"""What stock's runner calls its drafter: from running requests to the draft trees of the next step."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from vllm.config import VllmConfig
from vllm.distributed import get_tp_group
from vllm.logger import init_logger

from tlt_engine.config import TltConfig
from tlt_engine.drafter.checkpoint import check_tensors
from tlt_engine.drafter.config import DrafterConfig, default_aux_layer_ids
from tlt_engine.drafter.learned import LearnedDrafter
from tlt_engine.drafter.model import DrafterModel
from tlt_engine.drafter.runtime import DrafterRuntime
from tlt_engine.spec.adaptive_drafter import AdaptiveDrafter, StepResult
from tlt_engine.spec.cost_model import CostModel
from tlt_engine.spec.decision_log import DecisionLog
from tlt_engine.spec.drafter import DraftRequest, FinishReason
from tlt_engine.spec.guard import Guard
from tlt_engine.spec.policy_factory import build_selector
from tlt_engine.spec.step_cost import StepCost
from tlt_engine.spec.strategy import WITH_NETWORK
from tlt_engine.spec.tree import EMPTY_TREE, DraftTree
from tlt_engine.worker.background_training import BackgroundTraining, training_refusal
from tlt_engine.worker.drafter_factory import build_drafters, build_runtime, read_checkpoint
from tlt_engine.worker.feature_tap import CommittedRows, FeatureTap
from tlt_engine.worker.sample_recorder import RecordingLimits, SampleRecorder
from tlt_engine.worker.shared_embedding import SharedEmbedding
from tlt_engine.worker.weight_receiver import WeightReceiver

logger = init_logger(f"vllm.{__name__}")

FEW_STEPS, MANY_STEPS = 4, 64
"""Steps of earlier weights that still count: somebody else's may be anything, our trainer's are a little better."""


class TltProposer:
    """The ``custom_class`` object that vLLM builds; the runner calls ``draft`` instead of stock's ``propose``."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        self.config = TltConfig.from_user(vllm_config.additional_config["tlt"])
        self.step_cost = StepCost()
        self.tap_seconds = 0.0
        self.training: BackgroundTraining | None = None
        self.training_refusal = training_refusal(self.config, vllm_config)
        self.recorder: SampleRecorder | None = None
        if self.config.record_samples:
            self.recorder = SampleRecorder(RecordingLimits(max_bytes=self.config.max_recorded_bytes))
        self.receiver = WeightReceiver()
        self.drafters = build_drafters(self.config, vllm_config.model_config.get_vocab_size())
        self.cost_model = CostModel(self.step_cost)
        self._takers: list[FeatureTap | SampleRecorder] = [] if self.recorder is None else [self.recorder]
        self._num_published = 0
        self._runtime: DrafterRuntime | None = None
        self._embedding: SharedEmbedding | None = None
        self._vllm_config = vllm_config
        self._served = read_checkpoint(self.config, vllm_config, is_trained=self.training_refusal is None)
        self._drafter_config = self._served.checkpoint.config if self._served.checkpoint is not None else None
        if self._drafter_config is None and self.training_refusal is None:
            self._drafter_config = DrafterConfig.from_target(vllm_config.model_config.hf_text_config)
        self._network: LearnedDrafter | None = None
        self._guard = Guard()
        log = self.config.adaptive.decision_log
        self._log = DecisionLog(Path(log)) if log is not None and get_tp_group().is_first_rank else None
        self.adaptive: AdaptiveDrafter

    @property
    def aux_layer_ids(self) -> tuple[int, ...]:
        """Target layers whose outputs are needed; empty if none are."""
        if self._drafter_config is not None:
            return self._drafter_config.aux_layer_ids
        if self.recorder is not None:
            return default_aux_layer_ids(self._vllm_config.model_config.hf_text_config.num_hidden_layers)
        return ()

    def take_features(
        self, req_ids: Sequence[str], committed: CommittedRows, aux_hidden: Sequence[Tensor], final_hidden: Tensor
    ) -> None:
        """Hands the hidden states of committed rows to whoever keeps them; see ``FeatureTap.take``."""
        started = time.perf_counter()
        for taker in self._takers:
            self._safely("take_features", taker.take, req_ids, committed, aux_hidden, final_hidden)
        self.tap_seconds += time.perf_counter() - started

    def load_model(self, target_model: Any) -> None:
        """Builds what needs the target: the learned drafter shares its embedding. The runner calls it once."""
        if self._drafter_config is not None:
            self._load_network(target_model, self._drafter_config)
        self.adaptive = AdaptiveDrafter(
            self.drafters,
            build_selector(self.config, self.drafters.names),
            self.cost_model,
            max_rows=self.config.max_step_rows,
            log=self._log,
        )
        if self._served.checkpoint is not None:
            self._expect(self._served.checkpoint.provenance.held_out_acceptance_rates, num_kept=0)

    def _load_network(self, target_model: Any, config: DrafterConfig) -> None:
        settings = self.config.learned
        self._embedding = SharedEmbedding(target_model)
        self._runtime, ring = build_runtime(settings, self._vllm_config, config, self._embedding)
        self._takers.append(FeatureTap(ring, settings.capture_threshold))
        self._network = LearnedDrafter(self._runtime, ring, self.drafters.score_guess)
        self.drafters.add_network(self._network)
        if self._served.checkpoint is not None:
            self._runtime.use(self._served.checkpoint.build())
        if self.training_refusal is None:
            self.training = BackgroundTraining(
                self._vllm_config,
                self.config,
                self._runtime,
                self._embedding,
                target_model,
                self.step_cost,
                self._served,
            )
            self.recorder = self.training.recorder
            self._takers.append(self.recorder)

    def time_network(self) -> None:
        """Times the network's passes, for the first guesses of what strategies cost; only the rank that drafts does."""
        if self._network is not None and get_tp_group().is_first_rank:
            self._safely("time_network", self._time_network)

    def publish(self, model: DrafterModel) -> int:
        """Puts other weights of the same shape into the learned drafter, between two steps.

        Args:
            model: the drafter; it is of no other use then.

        Returns:
            Its version.

        Raises:
            ValueError: there is no learned drafter, or it has another shape.
        """
        if self._runtime is None:
            raise ValueError(f"drafter {self.config.drafter!r} has no weights; name a drafter's directory to serve one")
        copied = copy.deepcopy(model) if self.training is not None else model
        self._runtime.use(model)
        if self.training is not None:
            self.training.adopt(copied)
        self._expect((), num_kept=FEW_STEPS)
        self._num_published += 1
        return self.drafter_version

    def publish_tensors(self, tensors: Mapping[str, Tensor]) -> int:
        """Does the same with a drafter's tensors by name.

        Raises:
            ValueError: they are not those of a drafter of this shape, or not finite.
        """
        if self._drafter_config is None:
            raise ValueError(f"drafter {self.config.drafter!r} has no weights; name a drafter's directory to serve one")
        check_tensors("tlt_publish", self._drafter_config, tensors)
        model = DrafterModel(self._drafter_config).to(tensors["fc.weight"].dtype)
        model.load_state_dict(tensors)
        return self.publish(model)

    def propose(self, *args: Any, **kwargs: Any) -> list[list[int]]:
        """Is never reached when the worker is ours; stock's runner would call it."""
        raise RuntimeError(
            "method 'tlt' needs tlt_engine's worker, but vLLM runs another one; leave --worker-cls at its default"
        )

    @property
    def drafter_version(self) -> int:
        """Counts the weights that went live since the start, or since training began where it is kept on disk."""
        return self.training.coordinator.drafter_version if self.training is not None else self._num_published

    @property
    def has_runtime(self) -> bool:
        """Whether there is a learned drafter, with weights or still without."""
        return self._runtime is not None

    @property
    def drafts(self) -> bool:
        """Whether there is a drafter at all."""
        return self.drafters.names != ("none",)

    @property
    def num_failures(self) -> int:
        """Failures of the drafters and of what feeds them."""
        return self.drafters.num_failures + self._guard.num_failures

    @property
    def draft_seconds(self) -> float:
        """Seconds spent drafting in decode steps."""
        return self.adaptive.draft_seconds

    def record_step(self, result: StepResult | None) -> None:
        """Learns what the step under way brought; see ``AdaptiveDrafter.record_step``."""
        if self.drafts:
            self._safely("record_step", self.adaptive.record_step, result)

    def draft(self, requests: Sequence[DraftRequest], *, num_reqs: int, row_context: int) -> list[DraftTree]:
        """Proposes the trees of the next step; see ``AdaptiveDrafter.draft``."""
        trees: list[DraftTree] = [EMPTY_TREE] * len(requests)

        def draft() -> None:
            trees[:] = self.adaptive.draft(requests, num_reqs=num_reqs, row_context=row_context)

        self._guard.pass_step()
        if self.drafts and self._guard.is_open:
            self._safely("draft", draft)
        return trees

    def observe(self, req_id: str, tree: DraftTree, accepted_nodes: Sequence[int]) -> None:
        """Tells what became of a verified tree."""
        self._safely("observe", self.adaptive.observe, req_id, tree, accepted_nodes)
        self.drafters.observe(req_id, tree, accepted_nodes)

    def finish(self, req_id: str, reason: FinishReason) -> None:
        """Tells everybody that a request will not come back; the runner still has its state."""
        self.adaptive.finish(req_id)
        self.drafters.finish(req_id, reason)
        if self.recorder is not None:
            self._safely("recorder.finish", self.recorder.finish, req_id)

    def end_step(self, decoded: tuple[int, int] | None) -> None:
        """Tells the trainer what the step took; see ``BackgroundTraining.end_step``."""
        if self.training is not None:
            self._safely("end_step", self._end_training_step, decoded)

    def set_target_version(self, target_version: int) -> None:
        """Tells the drafters that the target's weights changed; all ranks call it together."""
        if self._embedding is not None:
            self._embedding.refresh()
        if self.training is not None:
            self.training.set_target_version(target_version)
        self.drafters.set_target_version(target_version)
        self.drafters.expect(None)
        self.adaptive.forget(self.drafters.names, FEW_STEPS)

    def num_bytes(self) -> dict[str, tuple[int, int]]:
        """Returns, for each buffer of the drafters and of the recorder, the bytes in use and the cap."""
        buffers = self.drafters.num_bytes()
        if self._embedding is not None and (size := self._embedding.num_bytes()):
            buffers = {**buffers, "drafter.embedding": (size, size)}
        if self.training is not None:
            return {**buffers, **self.training.num_bytes()}
        return buffers if self.recorder is None else {**buffers, "recorded_samples": self.recorder.num_bytes()}

    def _time_network(self) -> None:
        assert self._network is not None
        self.cost_model.draft_cost.set_passes(self._network.time_passes())

    def _end_training_step(self, decoded: tuple[int, int] | None) -> None:
        assert self.training is not None
        publication = self.training.end_step(decoded)
        if publication is not None:
            self._expect(publication.acceptance.rates, num_kept=MANY_STEPS)

    def _expect(self, rates: Sequence[float], *, num_kept: int) -> None:
        """Learns that the network has other weights.

        Args:
            rates: share of greedy chains accepted up to each depth on held-out text; empty if nobody knows.
            num_kept: steps with the earlier weights that still count.
        """
        self.drafters.expect(rates[0] if rates else None)
        conditional = [rate / before if before else 0.0 for rate, before in zip(rates, (1.0, *rates), strict=False)]
        for drafter in WITH_NETWORK:
            self.cost_model.acceptance.expect(drafter, conditional)
        self.adaptive.forget(WITH_NETWORK, num_kept)

    def _safely(self, what: str, call: Callable[..., object], *args: Any) -> None:
        try:
            call(*args)
        except Exception as error:  # noqa: BLE001 - whatever memory or a model's layout brings, serving goes on
            pause = self._guard.fail()
            if pause is not None:
                logger.warning("Drafting failed in %s and pauses for %d steps; serving goes on: %r", what, pause, error)
        else:
            if what == "draft":
                self._guard.succeed()
