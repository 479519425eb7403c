"""What each part of the model-free drafter brings: recorded responses replayed through its variants, step by step.

The responses are those of ``tlt-off``, whose noise is known; a replay accepts what they really contain, all requests
side by side as in a rollout. No clock decides anything, so the numbers repeat exactly.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from arctic_inference.suffix_decoding import SuffixDecodingCache

from benchmarks import bench_rollout
from benchmarks.jobs import JobRequest
from benchmarks.machine import new_result
from benchmarks.measure import print_rows, run_in_fresh_process
from benchmarks.options import DEFAULT_MODEL, model_name
from benchmarks.prompts import ROLLOUT_TASKS, make_prompts
from benchmarks.result import summarise
from tlt_engine.config import PromptLookupConfig
from tlt_engine.spec.drafter import Drafter, DraftRequest, FinishReason
from tlt_engine.spec.prompt_lookup import PromptLookup
from tlt_engine.spec.tree import ROOT, DraftTree

NUM_NODES = (3, 7, 15)


class LibraryDrafter:
    """arctic-inference's own choice, as stock's method ``suffix`` uses it."""

    def __init__(self, *, use_trees: bool) -> None:
        self._cache = SuffixDecodingCache(max_tree_depth=24)
        self._use_trees = use_trees
        self._num_read: dict[str, int] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftTree]:
        """Returns the library's draft for each request."""
        for request in requests:
            if request.req_id not in self._num_read:
                self._cache.start_request(request.req_id, request.token_ids[: request.num_prompt_tokens])
                self._num_read[request.req_id] = request.num_prompt_tokens
            self._cache.add_active_response(request.req_id, request.token_ids[self._num_read[request.req_id] :])
            self._num_read[request.req_id] = len(request.token_ids)
        drafts = [
            self._cache.speculate(
                request.req_id,
                request.token_ids[-24:],
                max_spec_tokens=request.max_nodes,
                use_tree_spec=self._use_trees,
            )
            for request in requests
        ]
        return [DraftTree(list(draft.token_ids), list(draft.parents)) for draft in drafts]

    def finish(self, req_id: str, reason: FinishReason) -> None:
        """Keeps the response, as stock does."""
        self._cache.stop_request(req_id)


def accepted_length(tree: DraftTree, continuation: Sequence[int]) -> int:
    """Returns how many tokens of ``continuation`` the tree holds as a path from its root."""
    children: dict[tuple[int, int], int] = {}
    for node, (token_id, parent) in enumerate(zip(tree.token_ids, tree.parents, strict=True)):
        children.setdefault((parent, token_id), node)
    tip = ROOT
    for place, token_id in enumerate(continuation):
        if (tip, token_id) not in children:
            return place
        tip = children[tip, token_id]
    return len(continuation)


def replay(
    drafter: Drafter | LibraryDrafter, requests: list[JobRequest], responses: dict[str, list[int]], num_nodes: int
) -> tuple[float, float, float]:
    """Replays all responses side by side.

    Returns:
        Tokens a step, draft tokens a step, drafting microseconds a step, each per request.
    """
    emitted = {request.request_id: 1 for request in requests if len(responses[request.request_id]) > 1}
    num_steps = num_tokens = num_drafted = 0
    seconds = 0.0
    while emitted:
        live = [request for request in requests if request.request_id in emitted]
        asked = [
            DraftRequest(
                request.request_id,
                np.array(
                    request.prompt_token_ids + responses[request.request_id][: emitted[request.request_id]], np.int32
                ),
                len(request.prompt_token_ids),
                max_nodes=num_nodes,
                seed=request.seed if request.temperature > 0 else None,
                max_depth=len(responses[request.request_id]),
            )
            for request in live
        ]
        start = time.perf_counter()
        trees = drafter.propose(asked)
        seconds += time.perf_counter() - start
        for request, tree in zip(live, trees, strict=True):
            response, done = responses[request.request_id], emitted[request.request_id]
            gained = min(accepted_length(tree, response[done:]) + 1, len(response) - done)
            num_steps, num_tokens, num_drafted = num_steps + 1, num_tokens + gained, num_drafted + len(tree)
            emitted[request.request_id] = done + gained
            if done + gained == len(response):
                del emitted[request.request_id]
                drafter.finish(request.request_id, FinishReason.COMPLETED)
    return num_tokens / num_steps, num_drafted / num_steps, 1e6 * seconds / num_steps


def variants(requests: list[JobRequest]) -> dict[str, tuple[Callable[[], Drafter | LibraryDrafter], list[JobRequest]]]:
    """Returns, by name, how to build each drafter and the requests as it may see them."""
    blind = [replace(request, temperature=0.0) for request in requests]  # a greedy request has no noise to look at
    return {
        "library-chain": (lambda: LibraryDrafter(use_trees=False), requests),
        "library-tree": (lambda: LibraryDrafter(use_trees=True), requests),
        "tlt-ngram, noise unseen": (lambda: PromptLookup(PromptLookupConfig()), blind),
        "tlt-ngram": (lambda: PromptLookup(PromptLookupConfig()), requests),
    }


def main() -> None:
    """Runs the benchmark, prints its rows and, unless ``--quick``, writes its file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_drafter", description=__doc__)
    parser.add_argument("--model", default=str(DEFAULT_MODEL))
    parser.add_argument("--num-prompts", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.num_prompts, arguments.group_size, arguments.max_tokens = 2, 2, 48
    prompts = make_prompts(arguments.model, ROLLOUT_TASKS, arguments.num_prompts)
    result = new_result(
        "drafter",
        "benchmarks.bench_drafter",
        {key: value for key, value in vars(arguments).items() if key != "model"}
        | {"model": model_name(arguments.model), "tasks": list(ROLLOUT_TASKS)},
    )
    for temperature in (0.0, 1.0):
        sampling = argparse.Namespace(
            **vars(arguments),
            temperature=temperature,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            seed=0,
            drafter=None,
            concurrency=None,
        )
        job = bench_rollout.make_job(sampling, "tlt-off", prompts, [])
        responses = run_in_fresh_process(job, show=None).token_ids
        case = f"temperature {temperature:g}"
        for name, (build, requests) in variants(job.requests).items():
            for num_nodes in NUM_NODES:
                tokens, drafted, us = replay(build(), requests, responses, num_nodes)
                fields = {"name": name, "case": f"{case}, {num_nodes} nodes"}
                result.rows += [
                    summarise([tokens], metric="tokens_per_step", unit="tokens", **fields),
                    summarise([drafted], metric="draft_tokens_per_step", unit="tokens", **fields),
                    summarise([us], metric="us", unit="us", **fields),
                ]
    print_rows(result.rows)
    if not arguments.quick:
        print(f"written: {result.write().name}")


if __name__ == "__main__":
    main()
