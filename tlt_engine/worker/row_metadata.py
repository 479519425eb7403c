"""Stock sampling metadata for chosen verify rows: each row sees its own request's parameters and its own path."""

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)
from vllm.v1.sample.logits_processor.interface import LogitsProcessor
from vllm.v1.sample.metadata import SamplingMetadata


def has_processing(metadata: SamplingMetadata) -> bool:
    """Returns whether anything but temperature stands between the logits and the sampled token."""
    return (
        not metadata.no_penalties
        or bool(metadata.bad_words_token_ids)
        or metadata.allowed_token_ids_mask is not None
        or metadata.top_k is not None
        or metadata.top_p is not None
        or tracks_thinking_budget(metadata)
        or any(_is_active(processor) for processor in metadata.logitsprocs.all)
    )


def tracks_thinking_budget(metadata: SamplingMetadata) -> bool:
    """Returns whether a request of the batch has a thinking budget; its state is per request, not per row."""
    holder = metadata.thinking_budget_state_holder
    return holder is not None and holder.has_tracked_requests()


def has_custom_processors(processors: LogitsProcessors) -> bool:
    """Returns whether a processor is loaded whose state we cannot read for single rows."""
    return any(not isinstance(processor, _ROW_VIEWS) for processor in processors.all)


def metadata_for_rows(
    metadata: SamplingMetadata, reqs: Sequence[int], path_tokens: Sequence[list[int]], device: torch.device
) -> SamplingMetadata:
    """Expands the batch's metadata to rows.

    Args:
        metadata: stock metadata, one entry a request.
        reqs: request of each row.
        path_tokens: draft tokens between the root and each row; they count as output of that row.
        device: where the logits are.

    Returns:
        Metadata with one entry a row for stock's own ``Sampler.apply_logits_processors``. Thinking budgets and custom
        processors are left out: requests that need them are never given draft rows.
    """
    index = torch.tensor(reqs, dtype=torch.int64).to(device, non_blocking=True)

    def rows_of(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[index]

    output_token_ids = metadata.output_token_ids
    if output_token_ids:
        output_token_ids = [
            [*output_token_ids[req], *path] if path else output_token_ids[req]
            for req, path in zip(reqs, path_tokens, strict=True)
        ]
    path_lens = [len(path) for path in path_tokens]
    return replace(
        metadata,
        temperature=rows_of(metadata.temperature),
        top_k=rows_of(metadata.top_k),
        top_p=rows_of(metadata.top_p),
        prompt_token_ids=rows_of(metadata.prompt_token_ids),
        frequency_penalties=rows_of(metadata.frequency_penalties) if not metadata.no_penalties else None,
        presence_penalties=rows_of(metadata.presence_penalties) if not metadata.no_penalties else None,
        repetition_penalties=rows_of(metadata.repetition_penalties) if not metadata.no_penalties else None,
        output_token_ids=output_token_ids,
        allowed_token_ids_mask=rows_of(metadata.allowed_token_ids_mask),
        bad_words_token_ids={
            row: metadata.bad_words_token_ids[req]
            for row, req in enumerate(reqs)
            if req in metadata.bad_words_token_ids
        },
        logitsprocs=LogitsProcessors(
            view for processor in metadata.logitsprocs.all for view in _row_view(processor, reqs, path_lens, index)
        ),
        generators={},
        spec_token_ids=None,
        thinking_budget_state_holder=None,
    )


def _is_active(processor: LogitsProcessor) -> bool:
    if isinstance(processor, MinPLogitsProcessor):
        return processor.min_p_count > 0
    if isinstance(processor, LogitBiasLogitsProcessor):
        return bool(processor.biases)
    if isinstance(processor, MinTokensLogitsProcessor):
        return bool(processor.min_toks)
    return True


def _row_view(
    processor: LogitsProcessor, reqs: Sequence[int], path_lens: Sequence[int], index: Tensor
) -> list[LogitsProcessor]:
    """A shallow copy whose per-request tensors are per row, so that stock's own ``apply`` does the arithmetic."""
    if not _is_active(processor) or not isinstance(processor, _ROW_VIEWS):
        return []
    view = copy.copy(processor)
    if isinstance(view, MinPLogitsProcessor):
        view.min_p = view.min_p_device[index].unsqueeze(1)
    elif isinstance(view, LogitBiasLogitsProcessor):
        entries = [
            (row, token_id, bias) for row, req in enumerate(reqs) for token_id, bias in view.biases.get(req, {}).items()
        ]
        view.bias_tensor = view._device_tensor([bias for _, _, bias in entries], torch.float32)
        view.logits_slice = _slice(view, [(row, token_id) for row, token_id, _ in entries])
    elif isinstance(view, MinTokensLogitsProcessor):
        masked: list[tuple[int, int]] = []
        restorable: list[tuple[int, int]] = []
        for row, (req, path_len) in enumerate(zip(reqs, path_lens, strict=True)):
            if req not in view.min_toks:
                continue
            min_tokens, output_token_ids, stop_token_ids, uses_structured_output = view.min_toks[req]
            if len(output_token_ids) + path_len < min_tokens:
                entries_of_row = [(row, token_id) for token_id in stop_token_ids]
                masked += entries_of_row
                restorable += entries_of_row if uses_structured_output else []
        view.logits_slice = _slice(view, masked)
        view.restore_logits_slice = _slice(view, restorable)
    return [view]


def _slice(
    processor: LogitBiasLogitsProcessor | MinTokensLogitsProcessor, entries: list[tuple[int, int]]
) -> tuple[Tensor, Tensor]:
    rows = processor._device_tensor([row for row, _ in entries], torch.int32)
    return rows, processor._device_tensor([token_id for _, token_id in entries], torch.int32)


_ROW_VIEWS = (MinPLogitsProcessor, LogitBiasLogitsProcessor, MinTokensLogitsProcessor)
