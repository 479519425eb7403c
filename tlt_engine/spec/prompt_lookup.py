"""The model-free drafter: continuations of the current suffix in what was already written, merged into one tree."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from arctic_inference.suffix_decoding._C import SuffixTree

from tlt_engine.config import PromptLookupConfig
from tlt_engine.spec.backoff_model import BackoffModel, last_two
from tlt_engine.spec.calibration import Calibration, Continuation
from tlt_engine.spec.drafter import DraftRequest, FinishReason
from tlt_engine.spec.graft import unite
from tlt_engine.spec.noise import gumbel_noise
from tlt_engine.spec.response_cache import ResponseCache
from tlt_engine.spec.tree import EMPTY_TREE, ROOT, DraftTree

SHORT_CONTEXT = 2
"""Context of the second look-up: after the longest match, what usually follows the last token."""

MIN_FREQUENCY = 0.02
"""Rarer continuations of a context are not looked at."""

STEP_NODES, LEAST_NODES = 32, 4
"""Nodes an answer may have, summed over the requests of a step and at least for each: with many requests only the
likeliest nodes can pay, and looking at more costs each step time."""

LONGEST_CONTEXT = 12
"""Contexts this long or longer are of one kind; a longer match hardly tells more."""

FREQUENCY_EDGES = (0.1, 0.25, 0.5, 0.999)
"""Edges of the classes of relative frequency among a context's continuations; the last class is "always so far"."""

FREQUENCY_TRUST = 0.5
"""Before anything is seen, a continuation is emitted half as often as its relative frequency says: a tree over a few
thousand tokens has seen most of its contexts once."""

MERGED_EDGES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Edges of the classes of merged estimates: the best of several estimates is too high, which a second look corrects."""

DEEPEST_KIND = 3
"""Depth from which on a trained drafter's tokens are of one kind."""

LEAD_EDGES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Edges of the classes of a back-off candidate's lead."""

BACKOFF_CANDIDATES = 6
"""Candidates of the back-off model after one node."""

BACKOFF_PRIORS = (0.25, 0.1, 0.06, 0.05, 0.04, 0.03)
"""Share of sampled tokens that were the candidate of each rank, on SmolLM2-135M at temperature 1."""


class PromptLookup:
    """Drafts from suffix trees over the request, its prompt's responses and recent ones, and from a back-off model.

    The suffix trees are arctic-inference's. The library answers with one context length of one tree and counts a
    context seen once as certain; here every source is asked, at the longest match and at a short one, each node is
    valued by how often nodes of its kind came true, and the answers are merged. For sampled requests the noise a token
    will be drawn with is part of its value: it is known before the target has run. ``docs/drafting.md`` has the
    measurements behind each part.

    Source: SuffixDecoding (arXiv:2411.04975) for the trees, prompt lookup for the idea.
    """

    def __init__(self, config: PromptLookupConfig) -> None:
        self._min_prob = config.min_prob
        self._max_bytes = config.max_cached_bytes
        self._cache = ResponseCache(config.max_match_len, config.max_cached_responses, config.max_cached_bytes)
        self._backoff = BackoffModel()
        self._calibration = Calibration()
        self._answers: dict[str, list[list[Continuation]]] = {}

    def propose(self, requests: Sequence[DraftRequest], learned: Sequence[DraftTree] | None = None) -> list[DraftTree]:
        """Drafts for a step.

        Args:
            requests: what to draft for.
            learned: a trained drafter's tree for each, which is one more answer; its estimates are calibrated too.

        Returns:
            One tree a request; nodes carry their estimated acceptance and their source.
        """
        for request in requests:  # all first: responses to like prompts run side by side and feed one another
            self._read(request)
        num_nodes = max(LEAST_NODES, STEP_NODES // max(1, len(requests)))
        others = [None] * len(requests) if learned is None else learned
        return [
            self._propose_one(request, min(num_nodes, request.max_nodes), other)
            for request, other in zip(requests, others, strict=True)
        ]

    def observe(self, req_id: str, tree: DraftTree, accepted_nodes: Sequence[int]) -> None:
        """Does nothing: the tokens that the next ``propose`` brings tell more than what was verified."""

    def finish(self, req_id: str, reason: FinishReason) -> None:
        """Forgets a request; an ended response stays to draft from, an aborted one goes."""
        self._answers.pop(req_id, None)
        self._cache.finish(req_id, keep_response=reason is FinishReason.COMPLETED)

    def set_target_version(self, target_version: int) -> None:
        """Marks what follows as written by another target; earlier responses are evicted first."""
        self._cache.target_version = target_version

    def num_bytes(self) -> dict[str, tuple[int, int]]:
        """Returns the bytes of the suffix trees and of the back-off model, and their caps."""
        return {
            "prompt_lookup.suffix_trees": (self._cache.num_bytes(), self._max_bytes),
            "prompt_lookup.backoff_model": (self._backoff.num_bytes(), self._backoff.max_bytes),
        }

    def _read(self, request: DraftRequest) -> None:
        is_new = request.req_id not in self._cache
        emitted = self._cache.extend(request.req_id, request.token_ids, request.num_prompt_tokens).tolist()
        for answer in self._answers.pop(request.req_id, ()):
            self._calibration.learn(answer, emitted)
        unread = len(request.token_ids) if is_new else len(emitted)
        self._backoff.learn(request.token_ids[-(unread + 2) :].tolist(), min(2, len(request.token_ids) - unread))

    def _propose_one(self, request: DraftRequest, num_nodes: int, learned: DraftTree | None) -> DraftTree:
        if request.max_nodes <= 0 or request.max_depth <= 0:
            return EMPTY_TREE
        is_sampled = request.seed is not None
        answers = [*self._look_up(request, num_nodes), self._back_off(request)]
        if learned:
            answers.insert(0, learned_continuations(learned, is_sampled=is_sampled))
        merged, holders = self._merge(answers)
        second_look = _merged_continuations(merged, holders if learned else None, is_sampled=is_sampled)
        self._answers[request.req_id] = [*answers, second_look]
        merged.probs[:] = self._calibration.reach(second_look)
        # Nobody is likelier than its parent, and sorting keeps equals in order, so the first of these are a tree.
        ranked = sorted(range(len(merged)), key=lambda node: -merged.probs[node])[: request.max_nodes]
        return merged.select(sorted(node for node in ranked if merged.probs[node] >= self._min_prob))

    def _look_up(self, request: DraftRequest, num_nodes: int) -> list[list[Continuation]]:
        context = np.ascontiguousarray(request.token_ids[-self._cache.max_match_len :], dtype=np.int32)
        answers: list[list[Continuation]] = []
        for source, tree in self._cache.sources(request.req_id):
            longest, match_len = _continuations(tree, source, context, request, num_nodes)
            if longest:
                answers.append(longest)
                if match_len >= SHORT_CONTEXT:
                    answers.append(_continuations(tree, source, context[-SHORT_CONTEXT:], request, num_nodes)[0])
        return answers

    def _back_off(self, request: DraftRequest) -> list[Continuation]:
        """Asks the back-off model for the next token, and once more after its best candidate."""
        answer: list[Continuation] = []
        before = last_two(request.token_ids[-2:].tolist())
        parent = ROOT
        for depth in range(min(2, request.max_depth)):
            position = len(request.token_ids) - request.num_prompt_tokens + depth
            noise = None if request.seed is None else self._backoff.level_noise(request.seed, position)
            candidates = self._backoff.candidates(before, noise, BACKOFF_CANDIDATES)
            if not candidates:
                break
            place = len(answer)
            for candidate in candidates:
                kind = ("backoff", depth, noise is None, candidate.rank, bisect_right(LEAD_EDGES, candidate.lead))
                answer.append(Continuation(candidate.token_id, parent, kind, BACKOFF_PRIORS[candidate.rank]))
            before, parent = (before[1], candidates[0].token_id), place
        return answer

    def _merge(self, answers: Sequence[Sequence[Continuation]]) -> tuple[DraftTree, list[int]]:
        return unite(
            (
                (token_id, parent, prob, str(kind[0]))
                for (token_id, parent, kind, *_), prob in zip(answer, self._calibration.reach(answer), strict=True)
            )
            for answer in answers
        )


def _continuations(
    tree: SuffixTree, source: str, context: npt.NDArray[np.int32], request: DraftRequest, num_nodes: int
) -> tuple[list[Continuation], int]:
    """Asks one suffix tree what followed the longest suffix of ``context``; the whole of it is never matched.

    Returns:
        The continuations and the length of the match.
    """
    # The library limits drafts by the match length; the calibration does that better, so its limits are switched off.
    draft = tree.speculate_ndarray(context, num_nodes, 1e6, 0.0, MIN_FREQUENCY, True)
    token_ids, probs, parents, match_len = draft.token_ids, draft.probs, draft.parents, draft.match_len
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    noise: list[float | None] = [None] * len(depths)
    if request.seed is not None and depths:
        positions = np.array(depths, np.int64) + (len(request.token_ids) - request.num_prompt_tokens)
        noise = gumbel_noise(request.seed, positions, np.array(token_ids, np.int64)).tolist()
    answer: list[Continuation] = []
    for node, (token_id, parent, prob) in enumerate(zip(token_ids, parents, probs, strict=True)):
        frequency = prob if parent < 0 else prob / probs[parent]
        context_len = min(match_len + depths[node], LONGEST_CONTEXT)
        kind = (source, context_len, bisect_right(FREQUENCY_EDGES, frequency))
        answer.append(Continuation(token_id, parent, kind, FREQUENCY_TRUST * frequency, noise[node]))
    return answer, match_len


def learned_continuations(tree: DraftTree, *, is_sampled: bool) -> list[Continuation]:
    """Returns a trained drafter's tree as an answer whose kinds are classes of what it thinks itself.

    It says how likely the target is to write a token, not how likely the token is the target's choice: with greedy
    requests a token it gives a half is right far more often.

    Args:
        tree: with the probability of each path.
        is_sampled: whether the target draws; the probabilities then allow for the noise.
    """
    depths: list[int] = []
    continuations: list[Continuation] = []
    for token_id, parent, estimate in zip(tree.token_ids, tree.parents, _conditional(tree), strict=True):
        depths.append(0 if parent == ROOT else depths[parent] + 1)
        kind = ("learned", is_sampled, min(depths[-1], DEEPEST_KIND), bisect_right(MERGED_EDGES, estimate))
        continuations.append(Continuation(token_id, parent, kind, estimate))
    return continuations


def _merged_continuations(tree: DraftTree, holders: list[int] | None, *, is_sampled: bool) -> list[Continuation]:
    """The merged tree as one more answer, whose kinds are classes of the estimate itself.

    With a trained drafter's answer among the merged ones, the first, they also tell which tokens both sorts of drafter
    hold: then each of them is likelier than either says.
    """
    continuations: list[Continuation] = []
    for node, (token_id, parent, estimate) in enumerate(
        zip(tree.token_ids, tree.parents, _conditional(tree), strict=True)
    ):
        agreement = "" if holders is None else _agreement(holders[node])
        kind = ("merged", is_sampled, agreement, bisect_right(MERGED_EDGES, estimate))
        continuations.append(Continuation(token_id, parent, kind, estimate))
    return continuations


def _agreement(holders: int) -> str:
    if not holders & 1:
        return "lookup"
    return "learned" if holders == 1 else "both"


def _conditional(tree: DraftTree) -> list[float]:
    """Returns each node's probability given its parent."""
    before = [1.0 if parent == ROOT else tree.probs[parent] for parent in tree.parents]
    return [min(1.0, prob / last) if last > 0 else 0.0 for prob, last in zip(tree.probs, before, strict=True)]
