"""Suffix trees over each running request, over the responses to its prompt and over recent responses, under caps."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from arctic_inference.suffix_decoding._C import SuffixTree

BYTES_PER_TOKEN = 400
"""Memory of one token in one suffix tree: 278 to 318 bytes by the library's own walk over 49k generated tokens
(depths 16 and 24), and what allocators add. The walk itself is too slow for the step path."""

TREES_PER_RESPONSE = 2
"""A response stands in its prompt's tree and in the tree of recent responses."""

Tokens = npt.NDArray[np.int32]


@dataclass
class _Response:
    req_id: str
    sequence: int
    """Identifier in the suffix trees."""
    prompt: bytes
    num_tokens: int
    target_version: int


@dataclass
class _Running:
    own: SuffixTree
    num_own_tokens: int
    response: _Response


class ResponseCache:
    """Holds what a request may draft from; the trees are arctic-inference's.

    Responses that an older target wrote are evicted first, then the oldest; running ones only count.
    """

    def __init__(self, max_match_len: int, max_responses: int, max_bytes: int) -> None:
        self.max_match_len = max_match_len
        self.target_version = 0
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._recent = SuffixTree(max_match_len)
        self._by_prompt: dict[bytes, SuffixTree] = {}
        self._running: dict[str, _Running] = {}
        self._finished: dict[int, _Response] = {}
        self._next_sequence = 0
        self._num_tree_tokens = 0

    def __contains__(self, req_id: str) -> bool:
        return req_id in self._running

    def extend(self, req_id: str, token_ids: Tokens, num_prompt_tokens: int) -> Tokens:
        """Brings a running request's trees up to date, starting it if it is new.

        Args:
            req_id: the request.
            token_ids: ``[num_tokens]``. Its prompt and output so far.
            num_prompt_tokens: tokens of the prompt.

        Returns:
            The output tokens that were new.
        """
        if req_id not in self._running:
            self._start(req_id, token_ids[:num_prompt_tokens])
        running = self._running[req_id]
        new_tokens = np.ascontiguousarray(token_ids[running.num_own_tokens :], dtype=np.int32)
        response = running.response
        running.own.extend_ndarray(0, new_tokens)
        self._by_prompt[response.prompt].extend_ndarray(response.sequence, new_tokens)
        self._recent.extend_ndarray(response.sequence, new_tokens)
        running.num_own_tokens += len(new_tokens)
        response.num_tokens += len(new_tokens)
        self._num_tree_tokens += (1 + TREES_PER_RESPONSE) * len(new_tokens)
        self._evict()
        return new_tokens

    def sources(self, req_id: str) -> Iterator[tuple[str, SuffixTree]]:
        """Yields the trees a running request can draft from, each with the name of its source."""
        running = self._running[req_id]
        yield "request", running.own
        siblings = self._by_prompt[running.response.prompt]
        if siblings.num_seqs() > 1:
            yield "prompt", siblings
        yield "recent", self._recent

    def finish(self, req_id: str, *, keep_response: bool) -> None:
        """Drops what belonged to a running request; its response stays in the cache if it is worth keeping."""
        running = self._running.pop(req_id, None)
        if running is None:
            return
        self._num_tree_tokens -= running.num_own_tokens
        self._finished[running.response.sequence] = running.response
        if not keep_response:
            self._remove(running.response)
        self._evict()

    def num_bytes(self) -> int:
        """Returns the estimated memory of all trees."""
        return self._num_tree_tokens * BYTES_PER_TOKEN

    def num_responses(self) -> int:
        """Returns how many finished responses are kept."""
        return len(self._finished)

    def _start(self, req_id: str, prompt_token_ids: Tokens) -> None:
        prompt = prompt_token_ids.tobytes()
        own = SuffixTree(self.max_match_len)
        own.extend_ndarray(0, np.ascontiguousarray(prompt_token_ids, dtype=np.int32))
        self._by_prompt.setdefault(prompt, SuffixTree(self.max_match_len))
        response = _Response(req_id, self._next_sequence, prompt, 0, self.target_version)
        self._next_sequence += 1
        self._running[req_id] = _Running(own, len(prompt_token_ids), response)
        self._num_tree_tokens += len(prompt_token_ids)

    def _evict(self) -> None:
        while self._finished and (len(self._finished) > self._max_responses or self.num_bytes() > self._max_bytes):
            # Finishing order is insertion order, so the scan is only for what older targets left behind.
            oldest = next(iter(self._finished.values()))
            if oldest.target_version == self.target_version:
                oldest = min(self._finished.values(), key=lambda response: response.target_version)
            self._remove(oldest)

    def _remove(self, response: _Response) -> None:
        del self._finished[response.sequence]
        self._num_tree_tokens -= TREES_PER_RESPONSE * response.num_tokens
        if response.num_tokens:
            self._recent.remove(response.sequence)
            tree = self._by_prompt[response.prompt]
            tree.remove(response.sequence)
        if self._is_unused(response.prompt):
            del self._by_prompt[response.prompt]

    def _is_unused(self, prompt: bytes) -> bool:
        return self._by_prompt[prompt].num_seqs() == 0 and all(
            running.response.prompt != prompt for running in self._running.values()
        )
