"""Chooses the target's token after each verify row and walks the draft trees along those tokens.

The target's token is drawn by Gumbel-max from its fully processed logits, with noise keyed by (request seed, output
position). The drafter never enters: what is emitted is what would be emitted without drafts.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
from vllm.v1.sample.sampler import Sampler

from tlt_engine import ops
from tlt_engine.spec.tree import TreeBatch
from tlt_engine.worker.row_metadata import (
    has_custom_processors,
    has_processing,
    metadata_for_rows,
    tracks_thinking_budget,
)

GREEDY_BELOW = 1e-5
"""Temperatures below are greedy, as in stock's sampler."""


@dataclass(frozen=True)
class NoiseKeys:
    """What the noise of the token that follows each row is keyed by."""

    seeds: Tensor
    """``[total_rows]`` int64. Seed of the row's request."""
    positions: Tensor
    """``[total_rows]`` int64. Output position of that token."""

    @classmethod
    def of_rows(
        cls,
        batch: TreeBatch,
        seeds: npt.NDArray[np.int64],
        num_emitted: npt.NDArray[np.int32],
        device: torch.device,
    ) -> "NoiseKeys":
        """Gives rows of one depth the same noise.

        Args:
            batch: the rows.
            seeds: ``[num_reqs]``. Seed of each request.
            num_emitted: ``[num_reqs]``. Output tokens each has emitted so far.
            device: where the tensors go.
        """
        positions = np.repeat(num_emitted, batch.num_rows).astype(np.int64) + batch.depths
        return cls(
            torch.from_numpy(np.repeat(seeds, batch.num_rows)).to(device, non_blocking=True),
            torch.from_numpy(positions).to(device, non_blocking=True),
        )


@dataclass(frozen=True)
class AcceptedPaths:
    """Which rows of each tree the target's tokens run along."""

    rows: Tensor
    """``[num_reqs, width]`` int32. Accepted rows inside the request, in path order, root excluded, padded with -1."""
    num_accepted: Tensor
    """``[num_reqs]`` int32. Draft tokens accepted, bonus excluded."""


class TreeSampler:
    """Samples for the V1 runner in place of stock's sampler and rejection sampler."""

    def __init__(self, stock: Sampler, *, walk_by_level: bool) -> None:
        """Wraps stock's sampler, whose processors it applies.

        Args:
            stock: the runner's sampler.
            walk_by_level: process logits only of rows the walk reaches, at the price of a look at the result after
                each level. Right on CPU, where a processed row costs milliseconds; on CUDA the look is a device
                synchronisation, so there all rows are processed at once unless a processor forbids it.
        """
        self._stock = stock
        self._walk_by_level = walk_by_level

    def sample(
        self, logits: Tensor, batch: TreeBatch, keys: NoiseKeys, metadata: SamplingMetadata
    ) -> tuple[SamplerOutput, AcceptedPaths]:
        """Draws the emitted tokens of one step.

        Args:
            logits: ``[total_rows, vocab_size]`` float. Raw logits of the verify rows; not modified.
            batch: the rows.
            keys: noise keys of the rows.
            metadata: stock's metadata of the batch.

        Returns:
            Stock's output, ``sampled_token_ids`` padded with -1, and the accepted paths.
        """
        walk = _Walk(self._stock, logits, batch, keys, metadata)
        if not has_processing(metadata):
            walk.choose_all_plain()
        elif self._walk_by_level or tracks_thinking_budget(metadata) or has_custom_processors(metadata.logitsprocs):
            walk.choose_by_level()
        else:
            walk.choose(np.arange(batch.total_rows))
        return walk.output(), walk.accepted_paths()


class _Walk:
    """One step's walk: target tokens are filled in, then the trees are followed along them."""

    def __init__(
        self, stock: Sampler, logits: Tensor, batch: TreeBatch, keys: NoiseKeys, metadata: SamplingMetadata
    ) -> None:
        self._stock = stock
        self._logits = logits
        self._batch = batch
        self._metadata = replace(metadata, spec_token_ids=None)
        device = logits.device
        self._cu_num_rows = torch.from_numpy(batch.cu_num_rows).to(device, non_blocking=True)
        self._roots = self._cu_num_rows[:-1].long()
        self._keys = keys
        if metadata.temperature is None:
            self._temperature = torch.zeros(batch.total_rows, dtype=torch.float32, device=device)
        else:
            self._temperature = metadata.temperature[torch.from_numpy(batch.req_of_row).to(device, non_blocking=True)]
        self._target_token_ids = torch.full((batch.total_rows,), -1, dtype=torch.int64, device=device)
        self._keeps_processed = bool(stock.logprobs_mode.startswith("processed")) and _wants_logprobs(metadata)
        self._processed: Tensor | None = None
        self._paths: AcceptedPaths | None = None

    def choose_all_plain(self) -> None:
        """Fills in the target tokens of all rows when only temperature applies."""
        keys = self._keys
        self._target_token_ids = ops.gumbel_argmax(self._logits, self._temperature, keys.seeds, keys.positions)
        if self._keeps_processed:
            self._keep(np.arange(self._batch.total_rows), _scaled(self._logits.float(), self._temperature))

    def choose_by_level(self) -> None:
        """Fills in the target tokens of rows as the walk reaches them."""
        pending = self._batch.cu_num_rows[:-1].astype(np.int64)
        while len(pending):
            self.choose(pending)
            self._paths = None
            tips = self._tips()
            pending = tips[self._target_token_ids[tips] < 0].cpu().numpy()

    def choose(self, rows: npt.NDArray[np.int64]) -> None:
        """Fills in the target tokens of ``rows`` through every processor of their requests."""
        index = torch.from_numpy(rows).to(self._logits.device, non_blocking=True)
        metadata = self._metadata
        if not np.array_equal(rows, self._batch.cu_num_rows[:-1]):  # roots of all requests are stock's own layout
            reqs = self._batch.req_of_row[rows].tolist()
            paths = [self._batch.path_tokens(req, row) for req, row in zip(reqs, rows.tolist(), strict=True)]
            metadata = metadata_for_rows(metadata, reqs, paths, self._logits.device)
        logits = self._logits[index].float()
        logits = self._stock.apply_logits_processors(logits, metadata, predict_bonus_token=False)
        if metadata.temperature is not None:
            logits = self._stock.apply_temperature(logits, metadata.temperature, metadata.all_random)
            for processor in metadata.logitsprocs.argmax_invariant:
                logits = processor.apply(logits)
            logits = apply_top_k_top_p(logits, metadata.top_k, metadata.top_p)
        if self._keeps_processed:
            self._keep(rows, logits)
        is_random = (self._temperature[index] >= GREEDY_BELOW).float()  # the logits are scaled already
        seeds, positions = self._keys.seeds[index], self._keys.positions[index]
        self._target_token_ids[index] = ops.gumbel_argmax(logits, is_random, seeds, positions)

    def accepted_paths(self) -> AcceptedPaths:
        """Returns the walk along the target tokens known so far."""
        if self._paths is None:
            device = self._logits.device
            rows, num_accepted = ops.tree_accept(
                torch.from_numpy(self._batch.parent_rows).to(device, non_blocking=True),
                torch.from_numpy(self._batch.draft_token_ids).to(device, non_blocking=True),
                self._target_token_ids,
                self._cu_num_rows,
                int(self._batch.num_rows.max()) - 1,
            )
            self._paths = AcceptedPaths(rows, num_accepted)
        return self._paths

    def output(self) -> SamplerOutput:
        """Returns the emitted tokens and their logprobs in stock's padded layout."""
        paths = self.accepted_paths()
        accepted = paths.rows
        if accepted.is_cpu:  # no synchronisation to save there, and logprobs of padding cost time
            accepted = accepted[:, : int(paths.num_accepted.max())]
        accepted = torch.nn.functional.pad(accepted, (1, 0))  # the root is row 0
        rows = self._roots[:, None] + accepted.clamp(min=0)
        sampled = self._target_token_ids[rows].masked_fill_(accepted < 0, -1).to(torch.int32)
        return SamplerOutput(sampled_token_ids=sampled, logprobs_tensors=self._logprobs(rows.flatten()))

    def _tips(self) -> Tensor:
        paths = self.accepted_paths()
        if paths.rows.shape[1] == 0:
            return self._roots
        last = paths.rows.gather(1, (paths.num_accepted.long() - 1).clamp(min=0)[:, None])[:, 0]
        return self._roots + last.clamp(min=0)

    def _keep(self, rows: npt.NDArray[np.int64], processed: Tensor) -> None:
        if self._processed is None:
            self._processed = torch.zeros(self._logits.shape, dtype=torch.float32, device=processed.device)
        self._processed[torch.from_numpy(rows)] = processed

    def _logprobs(self, rows: Tensor) -> LogprobsTensors | None:
        """Logprobs of the emitted tokens; ``rows`` ``[num_reqs * emitted]`` are the rows that chose them."""
        metadata, stock = self._metadata, self._stock
        if not _wants_logprobs(metadata):
            return None
        values = (self._logits if self._processed is None else self._processed)[rows]
        values = stock.compute_logprobs(values) if stock.logprobs_mode.endswith("logprobs") else values.float()
        token_ids = self._target_token_ids[rows]
        if metadata.logprob_token_ids:
            emitted = len(rows) // self._batch.num_reqs
            wanted = {req * emitted + i: ids for req, ids in metadata.logprob_token_ids.items() for i in range(emitted)}
            return stock.gather_specific_token_logprobs(values, wanted, token_ids)
        return stock.gather_logprobs(values, metadata.max_num_logprobs, token_ids)


def _wants_logprobs(metadata: SamplingMetadata) -> bool:
    return metadata.max_num_logprobs is not None or bool(metadata.logprob_token_ids)


def _scaled(logits: Tensor, temperature: Tensor) -> Tensor:
    return logits / torch.where(temperature < GREEDY_BELOW, 1.0, temperature)[:, None]
