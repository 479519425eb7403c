"""Drafters that try to break serving; used through ``speculative_config.drafter = "module:Class"``."""

import json
import random
import time
from pathlib import Path

from tlt_engine.spec.tree import EMPTY_TREE, ROOT, DraftTree


class FakeDrafter:
    """Does nothing; what a drafter must have."""

    def propose(self, requests):
        return [self.tree(request) for request in requests]

    def tree(self, request):
        return EMPTY_TREE

    def observe(self, req_id, tree, accepted_nodes):
        pass

    def finish(self, req_id, reason):
        pass

    def set_target_version(self, target_version):
        pass

    def num_bytes(self):
        return {}


class TreeOracle(FakeDrafter):
    """Bushy random trees that hold the answer, but for a share of nodes, among wrong siblings with subtrees."""

    def __init__(self, answers, vocab_size, miss=0.15, branching=3, depth=6, seed=0):
        self.answers = {tuple(prompt): output for prompt, output in json.loads(Path(answers).read_text())}
        self.vocab_size, self.miss, self.branching, self.depth = vocab_size, miss, branching, depth
        self.random = random.Random(seed)

    def tree(self, request):
        answer = self.answers.get(tuple(request.token_ids[: request.num_prompt_tokens].tolist()), [])
        emitted = len(request.token_ids) - request.num_prompt_tokens
        token_ids, parents = [], []
        frontier = [(ROOT, True)]
        for right in answer[emitted : emitted + self.depth]:
            grown = []
            for parent, is_on_path in frontier:
                children = {
                    self.random.randrange(self.vocab_size) for _ in range(self.random.randint(1, self.branching))
                }
                children.discard(right)
                children = list(children)
                if is_on_path and self.random.random() >= self.miss:
                    children.insert(self.random.randint(0, len(children)), right)
                for token_id in children:
                    if len(token_ids) < request.max_nodes:
                        token_ids.append(token_id)
                        parents.append(parent)
                        is_right = is_on_path and token_id == right
                        if is_right or self.random.random() < 0.3:
                            grown.append((len(token_ids) - 1, is_right))
            frontier = grown
        return DraftTree(token_ids, parents)


class Chain(FakeDrafter):
    """A chain of the right tokens."""

    def __init__(self, answers, length):
        self.answers = {tuple(prompt): output for prompt, output in json.loads(Path(answers).read_text())}
        self.length = length

    def tree(self, request):
        answer = self.answers.get(tuple(request.token_ids[: request.num_prompt_tokens].tolist()), [])
        emitted = len(request.token_ids) - request.num_prompt_tokens
        return DraftTree.chain(answer[emitted : emitted + self.length])


class Constant(FakeDrafter):
    """The same tokens every time, whatever the request."""

    def __init__(self, token_ids):
        self.token_ids = token_ids

    def tree(self, request):
        return DraftTree.chain(self.token_ids)


class OutOfVocabulary(FakeDrafter):
    """Token ids that do not exist."""

    def __init__(self, token_id):
        self.token_id = token_id

    def tree(self, request):
        return DraftTree.chain([self.token_id] * 4)


class Ragged(FakeDrafter):
    """None, one or more drafts than can be verified, from request to request and step to step."""

    def __init__(self, vocab_size):
        self.vocab_size = vocab_size
        self.random = random.Random(0)

    def tree(self, request):
        length = self.random.choice([0, 0, 1, 3, 40])
        return DraftTree.chain([self.random.randrange(self.vocab_size) for _ in range(length)])


class WrongCount(FakeDrafter):
    """Fewer trees than requests."""

    def propose(self, requests):
        return []


class Raising(FakeDrafter):
    """Fails in every method, but not in every call."""

    def __init__(self):
        self.calls = 0

    def propose(self, requests):
        self.calls += 1
        if self.calls % 3:
            raise RuntimeError("drafter fault on purpose")
        return [DraftTree.chain([1, 2, 3]) for _ in requests]

    def observe(self, req_id, tree, accepted_nodes):
        raise KeyError(req_id)

    def finish(self, req_id, reason):
        raise ValueError("drafter fault on purpose")


class Hanging(FakeDrafter):
    """Hangs once for ``seconds``."""

    def __init__(self, seconds):
        self.seconds = seconds

    def propose(self, requests):
        time.sleep(self.seconds)
        self.seconds = 0
        return super().propose(requests)
