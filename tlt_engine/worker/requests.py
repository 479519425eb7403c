"""What the runner knows of its requests that stock does not keep: noise seeds, and how a request left."""

from vllm.sampling_params import SamplingParams
from vllm.v1.worker.gpu_input_batch import CachedRequestState

from tlt_engine.spec.drafter import FinishReason
from tlt_engine.spec.noise import arrival_seed, signed_64


class SeedStore:
    """The sampling seed of each request: its own, or one drawn at arrival."""

    def __init__(self, engine_seed: int) -> None:
        self._engine_seed = engine_seed
        self._num_arrived = 0
        self._seeds: dict[str, int] = {}

    def add(self, req_id: str, params: SamplingParams | None) -> None:
        """Gives a request that is seen for the first time its seed."""
        if params is not None and params.seed is not None:
            self._seeds[req_id] = signed_64(params.seed)
        else:
            self._seeds[req_id] = arrival_seed(self._engine_seed, self._num_arrived)
        self._num_arrived += 1

    def __getitem__(self, req_id: str) -> int:
        return self._seeds[req_id]

    def forget(self, req_id: str) -> None:
        """Drops a request that left."""
        self._seeds.pop(req_id, None)


def finish_reason(state: CachedRequestState | None, max_model_len: int) -> FinishReason:
    """Tells an ended response from an aborted one; the scheduler only says that the request is gone.

    A request with stop strings counts as ended: the front end finds them and takes the request back itself.
    """
    if state is None or state.sampling_params is None or not state.output_token_ids:
        return FinishReason.ABORTED
    params = state.sampling_params
    output = state.output_token_ids
    is_ended = (
        output[-1] in params.all_stop_token_ids
        or len(output) >= (params.max_tokens or max_model_len)
        or state.num_tokens >= max_model_len
        or bool(params.stop)
    )
    return FinishReason.COMPLETED if is_ended else FinishReason.ABORTED


def may_draft(state: CachedRequestState) -> bool:
    """Returns whether a request can have draft rows at all.

    A thinking budget is kept per request and not per row, and a prompt of embeddings has no tokens to draft from.
    """
    params = state.sampling_params
    return params is not None and params.thinking_token_budget is None and state.prompt_embeds is None


def drafts_chain_only(state: CachedRequestState) -> bool:
    """Returns whether a request's rows must follow one another: the scheduler fills grammar bitmasks along the list."""
    return state.sampling_params.structured_outputs is not None
