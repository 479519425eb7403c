"""From running requests to the draft trees of the next step; a drafter that fails costs drafts, never a token."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from vllm.config import VllmConfig
from vllm.logger import init_logger

from tlt_engine.config import TltConfig
from tlt_engine.drafter.checkpoint import check_tensors
from tlt_engine.drafter.config import DrafterConfig, default_aux_layer_ids
from tlt_engine.drafter.grafted import GraftedDrafter
from tlt_engine.drafter.learned import LearnedDrafter
from tlt_engine.drafter.model import DrafterModel
from tlt_engine.drafter.runtime import DrafterRuntime
from tlt_engine.spec.draft_gate import ChoiceBias, DraftGate
from tlt_engine.spec.drafter import Drafter, DraftRequest, FinishReason
from tlt_engine.spec.prompt_lookup import PromptLookup
from tlt_engine.spec.step_cost import StepCost, choose_draft_rows
from tlt_engine.spec.tree import EMPTY_TREE, DraftTree
from tlt_engine.worker.background_training import BackgroundTraining, training_refusal
from tlt_engine.worker.drafter_factory import build_drafter, build_runtime, read_checkpoint
from tlt_engine.worker.feature_tap import CommittedRows, FeatureTap
from tlt_engine.worker.sample_recorder import RecordingLimits, SampleRecorder
from tlt_engine.worker.shared_embedding import SharedEmbedding
from tlt_engine.worker.weight_receiver import WeightReceiver

logger = init_logger(f"vllm.{__name__}")

FIRST_PAUSE_STEPS = 8
LONGEST_PAUSE_STEPS = 1024


class TltProposer:
    """The ``custom_class`` object that vLLM builds; the runner calls ``draft`` instead of stock's ``propose``."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        self.config = TltConfig.from_user(vllm_config.additional_config["tlt"])
        self.step_cost = StepCost()
        self.num_failures = 0
        self.draft_seconds = 0.0
        self._num_published = 0
        self.tap_seconds = 0.0
        self.training: BackgroundTraining | None = None
        self.training_refusal = training_refusal(self.config, vllm_config)
        self.recorder: SampleRecorder | None = None
        if self.config.record_samples:
            self.recorder = SampleRecorder(RecordingLimits(max_bytes=self.config.max_recorded_bytes))
        self._takers: list[FeatureTap | SampleRecorder] = [] if self.recorder is None else [self.recorder]
        self.receiver = WeightReceiver()
        self._runtime: DrafterRuntime | None = None
        self._embedding: SharedEmbedding | None = None
        self._gate = DraftGate()
        self._bias = ChoiceBias()
        self._vllm_config = vllm_config
        self._served = read_checkpoint(self.config, vllm_config, is_trained=self.training_refusal is None)
        self._drafter_config = self._served.checkpoint.config if self._served.checkpoint is not None else None
        if self._drafter_config is None and self.training_refusal is None:
            self._drafter_config = DrafterConfig.from_target(vllm_config.model_config.hf_text_config)
        self._drafter: Drafter | None = build_drafter(self.config) if self._drafter_config is None else None
        self._vocab_size = vllm_config.model_config.get_vocab_size()
        self._failures_in_a_row = 0
        self._pause_left = 0

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
        try:
            for taker in self._takers:
                taker.take(req_ids, committed, aux_hidden, final_hidden)
        except Exception as error:  # noqa: BLE001 - whatever memory or a model's layout brings, serving goes on
            self._fail("take_features", error)
        self.tap_seconds += time.perf_counter() - started

    def load_model(self, target_model: Any) -> None:
        """Builds what needs the target: the learned drafter shares its embedding. The runner calls it once."""
        if self._drafter_config is None:
            return
        settings = self.config.learned
        self._embedding = SharedEmbedding(target_model)
        self._runtime, ring = build_runtime(settings, self._vllm_config, self._drafter_config, self._embedding)
        self._takers.append(FeatureTap(ring, settings.capture_threshold))
        if self._served.checkpoint is not None:
            self._runtime.use(self._served.checkpoint.build())
        learned = LearnedDrafter(self._runtime, ring)
        self._drafter = learned
        if settings.is_grafted:
            self._drafter = GraftedDrafter(learned, PromptLookup(self.config.prompt_lookup))
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
        self._failures_in_a_row = self._pause_left = 0
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
        return self._drafter is not None

    def wants_drafts(self, num_reqs: int) -> bool:
        """Decides whether drafts are looked for in a step with ``num_reqs`` requests."""
        if self._drafter is None:
            return False
        if self._pause_left:
            self._pause_left -= 1
            return False
        return self._gate.should_draft(num_reqs)

    def draft(
        self, requests: Sequence[DraftRequest], chain_only: Sequence[bool], *, num_reqs: int, row_context: int
    ) -> list[DraftTree]:
        """Proposes the trees of the next step.

        Args:
            requests: requests that may be drafted for.
            chain_only: for each, whether its rows must follow one another.
            num_reqs: requests that will be in the step, those not drafted for included.
            row_context: committed tokens of all of these.

        Returns:
            One valid tree a request, in order; empty where drafting does not pay or failed.
        """
        nothing = [EMPTY_TREE] * len(requests)
        if self._drafter is None or not requests:
            return nothing
        started = time.perf_counter()
        try:
            trees = [
                self._fit(tree, request, is_chain)
                for tree, request, is_chain in zip(self._drafter.propose(requests), requests, chain_only, strict=True)
            ]
        except Exception as error:  # noqa: BLE001 - a drafter may be the user's own; whatever it raises, serving goes on
            self._fail("propose", error)
            return nothing
        self._failures_in_a_row = 0
        chosen = choose_draft_rows(
            trees,
            self.step_cost,
            context_lens=[len(request.token_ids) for request in requests],
            num_reqs=num_reqs,
            row_context=row_context,
            max_rows=self.config.max_step_rows,
            discount=self._bias.discount(num_reqs),
        )
        self._bias.record_chosen(num_reqs, chosen.expected_accepted)
        seconds = time.perf_counter() - started
        self.draft_seconds += seconds
        if self.step_cost.is_measured:
            self._gate.record(num_reqs, chosen.saved_seconds, seconds)
        return chosen.trees

    def observe(self, req_id: str, tree: DraftTree, accepted_nodes: Sequence[int]) -> None:
        """Tells the drafter what became of a verified tree."""
        self._bias.record_accepted(len(accepted_nodes))
        self._tell("observe", req_id, tree, accepted_nodes)

    def finish(self, req_id: str, reason: FinishReason) -> None:
        """Tells the drafter and the recorder that a request will not come back; the runner still has its state."""
        self._tell("finish", req_id, reason)
        if self.recorder is not None:
            self._guard("recorder.finish", self.recorder.finish, req_id)

    def end_step(self, decoded: tuple[int, int] | None) -> None:
        """Tells the trainer what the step took; see ``BackgroundTraining.end_step``."""
        if self.training is not None:
            self._guard("end_step", self.training.end_step, decoded)

    def set_target_version(self, target_version: int) -> None:
        """Tells the drafter that the target's weights changed; all ranks call it together."""
        if self._embedding is not None:
            self._embedding.refresh()
        if self.training is not None:
            self.training.set_target_version(target_version)
        self._tell("set_target_version", target_version)

    def num_bytes(self) -> dict[str, tuple[int, int]]:
        """Returns, for each buffer of the drafter and of the recorder, the bytes in use and the cap."""
        buffers = self._drafter.num_bytes() if self._drafter is not None else {}
        if self._embedding is not None and (size := self._embedding.num_bytes()):
            buffers = {**buffers, "drafter.embedding": (size, size)}
        if self.training is not None:
            return {**buffers, **self.training.num_bytes()}
        return buffers if self.recorder is None else {**buffers, "recorded_samples": self.recorder.num_bytes()}

    def _tell(self, method: str, *args: Any) -> None:
        if self._drafter is not None:
            self._guard(method, lambda: getattr(self._drafter, method)(*args))

    def _guard(self, what: str, call: Callable[..., object], *args: Any) -> None:
        try:
            call(*args)
        except Exception as error:  # noqa: BLE001 - as in draft()
            self._fail(what, error)

    def _fit(self, tree: DraftTree, request: DraftRequest, is_chain: bool) -> DraftTree:
        problem = tree.problem(self._vocab_size)
        if problem is not None:
            raise ValueError(f"draft for request {request.req_id}: {problem}")
        if is_chain:
            tree = tree.likeliest_chain()
        depths: list[int] = []
        nodes: list[int] = []
        for node, parent in enumerate(tree.parents):
            depths.append(1 if parent < 0 else depths[parent] + 1)
            if depths[node] <= request.max_depth:
                nodes.append(node)
        nodes = nodes[: request.max_nodes]
        return tree if len(nodes) == len(tree) else tree.select(nodes)

    def _fail(self, method: str, error: Exception) -> None:
        self.num_failures += 1
        self._failures_in_a_row += 1
        self._pause_left = min(FIRST_PAUSE_STEPS << (self._failures_in_a_row - 1), LONGEST_PAUSE_STEPS)
        if self._failures_in_a_row == 1:
            logger.warning(
                "The drafter failed in %s and is left alone for %d steps, longer if it fails again; "
                "serving goes on without drafts: %r",
                method,
                self._pause_left,
                error,
            )
