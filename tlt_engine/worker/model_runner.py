"""The overrides that make stock's V1 runner verify draft trees; each is ``super()`` plus one thing."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
import vllm.v1.worker.gpu_model_runner as stock_runner
from torch import Tensor
from vllm.config import VllmConfig
from vllm.distributed import get_tp_group
from vllm.logger import init_logger
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import SamplerOutput
from vllm.v1.worker.gpu_input_batch import CachedRequestState

from tlt_engine import ops
from tlt_engine.spec.adaptive_drafter import StepResult
from tlt_engine.spec.drafter import DraftRequest
from tlt_engine.spec.tree import EMPTY_TREE, DraftTree, TreeBatch
from tlt_engine.worker.feature_tap import CommittedRows
from tlt_engine.worker.proposer import TltProposer
from tlt_engine.worker.request_options import max_draft_tokens
from tlt_engine.worker.requests import SeedStore, drafts_chain_only, finish_reason, may_draft
from tlt_engine.worker.row_metadata import has_custom_processors
from tlt_engine.worker.sampler import GREEDY_BELOW, NoiseKeys, TreeSampler
from tlt_engine.worker.scoped_patches import all_logits_processors
from tlt_engine.worker.statistics import Statistics
from tlt_engine.worker.tree_rows import KvMoves, TreeRows
from tlt_engine.worker.tree_store import TreeStore

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as StockRunner
else:
    StockRunner = object  # the platform's runner comes after the mixin

logger = init_logger(f"vllm.{__name__}")


@dataclass
class Step:
    """The verify rows of the step under way."""

    batch: TreeBatch
    drafts: list[DraftTree]
    query_ends: npt.NDArray[np.int32]
    """``[num_reqs]``. Prefix sums of the step's query rows."""
    root_rows: npt.NDArray[np.int64]
    """``[num_reqs]``. Query row of each request's root."""
    trees: TreeRows | None
    """The rows that the tree kernel computes; None if stock's attention does all."""
    is_decode_only: bool
    started: float


class TreeRunnerMixin(StockRunner):
    """Mixed into stock's V1 runners, before them."""

    attention: Any
    """Module of the platform's tree attention: ``TAKES_ALL_DECODES``, ``token_planes``, ``unreadable_reason``."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        with all_logits_processors(stock_runner):
            super().__init__(vllm_config, device)
        self.drafter: TltProposer
        self.tlt_statistics = Statistics()
        self.tlt_trees = TreeStore()
        self.tlt_chain_reason: str | None = None
        self._tlt_step: Step | None = None
        self._tlt_sampler = TreeSampler(self.sampler, walk_by_level=self.device.type == "cpu")
        self._tlt_planes: list[list[Tensor]] = []
        self._tlt_seeds = SeedStore(self.model_config.seed + (self.parallel_config.data_parallel_index << 32))
        self._tlt_committed: CommittedRows | None = None
        self._tlt_decoded: tuple[int, int] | None = None
        self._tlt_target_seconds = 0.0
        self.use_aux_hidden_state_outputs = bool(self.drafter.aux_layer_ids)
        self.tlt_has_custom_processors = has_custom_processors(self.input_batch.logitsprocs)

    def _get_eagle3_aux_layers_from_config(self) -> tuple[int, ...]:
        return self.drafter.aux_layer_ids

    def get_draft_model(self) -> torch.nn.Module | None:
        """Returns what vLLM's draft weight updates load into; None if nothing that is learnt drafts."""
        return self.drafter.receiver if self.drafter.has_runtime else None

    def initialize_kv_cache(self, kv_cache_config: KVCacheConfig, *args: Any, **kwargs: Any) -> None:
        super().initialize_kv_cache(kv_cache_config, *args, **kwargs)
        if self.drafter.recorder is not None:
            self.drafter.recorder.states = self.requests
        # Budgeted requests have no draft rows, so their rows are laid out as without speculation.
        if (holder := self.input_batch.thinking_budget_state_holder) is not None:
            holder.in_spec_mode = False
        layers = self.compilation_config.static_forward_context
        groups = [[layers[name] for name in group.layer_names] for group in self.kv_cache_config.kv_cache_groups]
        reasons = [
            self.attention.unreadable_reason(layer.impl, layer, layer.kv_cache.dtype)
            for group in groups
            for layer in group
        ]
        if self.vllm_config.kv_transfer_config is not None:
            reasons.append("a KV connector saves the cache before accepted rows are in place")
        self.tlt_chain_reason = next((reason for reason in reasons if reason is not None), None)
        if self.tlt_chain_reason is None:
            self._tlt_planes = [
                [plane for layer in group for plane in self.attention.token_planes(layer.kv_cache)] for group in groups
            ]

    def _update_states(self, scheduler_output: SchedulerOutput) -> Any:
        for req_id in scheduler_output.finished_req_ids:
            self.drafter.finish(req_id, finish_reason(self.requests.get(req_id), self.max_model_len))
            self.tlt_trees.forget(req_id)
            self._tlt_seeds.forget(req_id)
        for request in scheduler_output.scheduled_new_reqs:
            self._tlt_seeds.add(request.req_id, request.sampling_params)
        corrections = super()._update_states(scheduler_output)
        # The noise is keyed by seed and position. Stock's generators are not used, and stock would rewind those of
        # partial prefills, which CPU generators cannot do.
        self.input_batch.generators.clear()
        return corrections

    def _prepare_inputs(self, scheduler_output: SchedulerOutput, num_scheduled_tokens: npt.NDArray[np.int32]) -> Any:
        started = time.perf_counter()
        inputs = super()._prepare_inputs(scheduler_output, num_scheduled_tokens)
        scheduled = scheduler_output.scheduled_spec_decode_tokens
        drafts = [self.tlt_trees.take(req_id, scheduled.get(req_id, ())) for req_id in self.input_batch.req_ids]
        batch = TreeBatch.pack(drafts)
        query_ends = np.cumsum(num_scheduled_tokens)
        step = Step(
            batch,
            drafts,
            query_ends,
            (query_ends - batch.num_rows).astype(np.int64),
            None,
            is_decode_only=int(query_ends[-1]) == batch.total_rows,
            started=started,
        )
        reqs = self._tree_kernel_reqs(batch, num_scheduled_tokens)
        if reqs:
            num_computed = self.input_batch.num_computed_tokens_cpu[: batch.num_reqs]
            step.trees = TreeRows.of_step(batch, reqs, query_ends, num_computed, self.device)
        if step.trees is not None and batch.branching_reqs:
            self.positions[step.trees.query_rows] = step.trees.positions
        if (batch.draft_token_ids < 0).sum() > batch.num_reqs:  # padding of data-parallel steps is no token id
            self.input_ids.gpu[: query_ends[-1]].clamp_(min=0)
        self._tlt_step = step
        if self.drafter.training is not None:
            self.drafter.training.begin_step(batch.num_reqs, step.is_decode_only)
        return inputs

    def _tree_kernel_reqs(self, batch: TreeBatch, num_scheduled_tokens: npt.NDArray[np.int32]) -> list[int]:
        if self.tlt_chain_reason is not None:
            return []
        if self.attention.TAKES_ALL_DECODES:
            return list(np.flatnonzero(batch.num_rows == num_scheduled_tokens))
        return batch.branching_reqs

    def _build_attention_metadata(self, *args: Any, **kwargs: Any) -> Any:
        trees = self._tlt_step.trees if self._tlt_step is not None else None
        builders = [group.get_metadata_builder(0) for group in self._attn_group_iterator()] if trees is not None else []
        for builder in builders:
            builder.trees = trees
        try:
            return super()._build_attention_metadata(*args, **kwargs)
        finally:
            for builder in builders:
                builder.trees = None

    def _sample(self, logits: Tensor, spec_decode_metadata: Any) -> SamplerOutput:
        step, self._tlt_step = self._tlt_step, None
        if step is None:
            return super()._sample(logits, spec_decode_metadata)
        self.input_batch.update_async_output_token_ids()
        output, paths = self._tlt_sampler.sample(
            logits, step.batch, self._noise_keys(step.batch), self.input_batch.sampling_metadata
        )
        accepted_rows = paths.rows.cpu().numpy()
        self._compact_kv(step, accepted_rows)
        self._count(step, accepted_rows)
        if self.use_aux_hidden_state_outputs:
            num_computed = self.input_batch.num_computed_tokens_cpu[: step.batch.num_reqs]
            self._tlt_committed = CommittedRows.of_step(step.query_ends, step.root_rows, accepted_rows, num_computed)
        self._tlt_decoded = None
        if step.is_decode_only:
            context_lens = self.input_batch.num_computed_tokens_cpu[: step.batch.num_reqs]
            self._tlt_decoded = (step.batch.total_rows, int(step.batch.num_rows @ context_lens))
            # Elsewhere than on CPU the clock sees launches, not work.
            self._tlt_target_seconds = time.perf_counter() - step.started
            if self.drafter.drafts and self.device.type == "cpu":
                self.drafter.step_cost.record(*self._tlt_decoded, self._tlt_target_seconds)
        return output

    def _input_fits_in_drafter(self, common_attn_metadata: Any) -> bool:
        return common_attn_metadata is not None  # lengths are limited request by request when drafts are made

    def propose_draft_token_ids(
        self,
        scheduler_output: SchedulerOutput,
        sampled_token_ids: list[list[int]],
        sampling_metadata: Any,
        hidden_states: Tensor,
        sample_hidden_states: Tensor,
        aux_hidden_states: list[Tensor] | None,
        *args: Any,
    ) -> list[list[int]]:
        """Proposes the drafts of the next step and keeps their trees; vLLM sees the tokens only."""
        tp_group = get_tp_group()
        if aux_hidden_states is not None and self._tlt_committed is not None and tp_group.is_first_rank:
            committed, self._tlt_committed = self._tlt_committed, None
            self.drafter.take_features(self.input_batch.req_ids, committed, aux_hidden_states, hidden_states)
        self._record_step(sampled_token_ids)
        if tp_group.world_size == 1:
            trees = self._propose_trees(sampled_token_ids)
        else:  # measured times decide about rows, and each rank measures its own
            trees = tp_group.broadcast_object(
                self._propose_trees(sampled_token_ids) if tp_group.is_first_rank else None
            )
        for req_id, tree in zip(self.input_batch.req_ids, trees, strict=True):
            self.tlt_trees.put(req_id, tree)
        self.drafter.end_step(self._tlt_decoded)
        return [tree.token_ids for tree in trees]

    def _record_step(self, sampled_token_ids: list[list[int]]) -> None:
        if self._tlt_decoded is None or not sampled_token_ids:
            self.drafter.record_step(None)
            return
        num_reqs = len(sampled_token_ids)
        result = StepResult(
            num_reqs,
            sum(map(len, sampled_token_ids)),
            int(self.input_batch.num_computed_tokens_cpu[:num_reqs].sum()),
            self._tlt_target_seconds,
        )
        self.drafter.record_step(result)

    def _propose_trees(self, sampled_token_ids: list[list[int]]) -> list[DraftTree]:
        trees = [EMPTY_TREE] * len(sampled_token_ids)
        states = [self.requests[req_id] for req_id in self.input_batch.req_ids]
        wanted = []
        if not self.tlt_has_custom_processors:
            wanted = [
                req
                for req, token_ids in enumerate(sampled_token_ids)
                if token_ids and may_draft(states[req]) and self._most_nodes(states[req])
            ]
        proposed = self.drafter.draft(
            [self._draft_request(req) for req in wanted],
            num_reqs=len(states),
            row_context=int(self.input_batch.num_tokens_no_spec[: len(states)].sum()),
        )
        for req, tree in zip(wanted, proposed, strict=True):
            trees[req] = tree
        return trees

    def _most_nodes(self, state: CachedRequestState) -> int:
        return max_draft_tokens(state.sampling_params.extra_args, self.num_spec_tokens)

    def _draft_request(self, req: int) -> DraftRequest:
        batch = self.input_batch
        state = self.requests[batch.req_ids[req]]
        num_tokens = int(batch.num_tokens_no_spec[req])
        max_tokens = state.sampling_params.max_tokens or self.max_model_len
        room = self.max_model_len - num_tokens - 1  # the bonus token needs a place, too
        return DraftRequest(
            state.req_id,
            batch.token_ids_cpu[req, :num_tokens],
            int(batch.num_prompt_tokens[req]),
            seed=None if state.sampling_params.temperature < GREEDY_BELOW else self._tlt_seeds[state.req_id],
            max_nodes=max(0, min(self._most_nodes(state), room)),
            max_depth=max(0, max_tokens - len(state.output_token_ids) - 1),
            temperature=state.sampling_params.temperature,
            is_chain_only=self.tlt_chain_reason is not None or drafts_chain_only(state),
        )

    def _noise_keys(self, batch: TreeBatch) -> NoiseKeys:
        requests, num_reqs = self.input_batch, batch.num_reqs
        seeds = np.array([self._tlt_seeds[req_id] for req_id in requests.req_ids], np.int64)
        num_emitted = requests.num_tokens_no_spec[:num_reqs] - requests.num_prompt_tokens[:num_reqs]
        return NoiseKeys.of_rows(batch, seeds, num_emitted, self.device)

    def _compact_kv(self, step: Step, accepted_rows: npt.NDArray[np.int32]) -> None:
        moves = KvMoves.of_paths(step.batch.branching_reqs, step.root_rows, accepted_rows)
        if not len(moves):
            return
        self.tlt_statistics.num_kv_moves += len(moves)
        src_rows = torch.from_numpy(moves.src_rows).to(self.device, non_blocking=True)
        dst_rows = torch.from_numpy(moves.dst_rows).to(self.device, non_blocking=True)
        cu_moves = torch.from_numpy(moves.cu_moves).to(self.device, non_blocking=True)
        for group, planes in enumerate(self._tlt_planes):
            slots = self.input_batch.block_table[group].slot_mapping.gpu
            ops.kv_compact(planes, slots[src_rows], slots[dst_rows], cu_moves)

    def _count(self, step: Step, accepted_rows: npt.NDArray[np.int32]) -> None:
        self.tlt_statistics.num_steps += 1
        is_discarded = self.discard_request_mask.np
        for req, (req_id, tree) in enumerate(zip(self.input_batch.req_ids, step.drafts, strict=True)):
            if is_discarded[req]:
                continue
            accepted_nodes = [row - 1 for row in accepted_rows[req].tolist() if row > 0]
            self.tlt_statistics.count_request(tree, accepted_nodes)
            if len(tree):
                self.drafter.observe(req_id, tree, accepted_nodes)
