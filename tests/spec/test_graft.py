"""United trees hold each path once, and a learned tree among the answers of look-up is valued by what came true."""

import numpy as np
import pytest

from tlt_engine.config import PromptLookupConfig
from tlt_engine.spec.drafter import DraftRequest
from tlt_engine.spec.graft import unite
from tlt_engine.spec.prompt_lookup import PromptLookup
from tlt_engine.spec.tree import EMPTY_TREE, ROOT, DraftTree

LEARNED = DraftTree([1, 2, 3], [ROOT, ROOT, 0], [0.6, 0.3, 0.4], ["learned"] * 3)
LOOKUP = DraftTree([1, 3, 9], [ROOT, 0, 1], [0.5, 0.45, 0.44], ["request"] * 3)


def united(*trees):
    return unite(zip(tree.token_ids, tree.parents, tree.probs, tree.sources, strict=True) for tree in trees)


def test_a_path_that_both_hold_is_counted_once_with_its_best_estimate():
    tree, holders = united(LEARNED, LOOKUP)
    assert tree.token_ids == [1, 2, 3, 9]
    assert tree.parents == [ROOT, ROOT, 0, 2]
    assert tree.probs == [0.6, 0.3, 0.45, 0.44]
    assert tree.sources == ["learned", "learned", "request", "request"]
    assert holders == [0b11, 0b01, 0b11, 0b10]


def test_an_empty_tree_changes_nothing():
    assert united(EMPTY_TREE, LOOKUP) == (LOOKUP, [0b10] * 3)


class Text:
    """Random tokens with a phrase now and then, and a drafter that guesses some of them."""

    def __init__(self, seed=None):
        self.tokens = [int(token) for token in np.random.default_rng(0).integers(100, 5000, 400)]
        self.drafter = PromptLookup(PromptLookupConfig())
        self.seed = seed

    def propose(self, length, learned, max_nodes=8):
        ids = np.array(self.tokens[:length], np.int32)
        request = DraftRequest("a", ids, 1, max_nodes, seed=self.seed, max_depth=9)
        return self.drafter.propose([request], [learned])[0]


@pytest.mark.parametrize("seed", [None, 5])
def test_a_learned_token_is_worth_how_often_such_tokens_came_true(seed):
    right, wrong = Text(seed), Text(seed)
    for length in range(2, 60):
        learned = DraftTree([right.tokens[length]], [ROOT], [0.45], ["learned"])
        sure = right.propose(length, learned)
        learned = DraftTree([7], [ROOT], [0.45], ["learned"])
        never = wrong.propose(length, learned)
    assert sure.probs[sure.sources.index("learned")] > 0.85
    assert "learned" not in never.sources or never.probs[never.sources.index("learned")] < 0.1


def test_what_both_hold_is_worth_more_than_what_one_holds():
    # A cue comes twice. Its second time, half of the time, it is followed as the first time and the network says so;
    # else both are wrong. Each alone is right in half of the cases, so only their agreement tells which.
    text = Text()
    text.tokens, guesses = [1, 2], {}
    for cue in range(10_000, 10_150):
        agrees = cue % 2 == 0
        text.tokens += [cue, cue + 1000, cue + 2000, cue]
        guesses[len(text.tokens)] = (cue + 1000 if agrees else 7, agrees)
        text.tokens += [cue + 1000 if agrees else cue + 3000]
    worth = {}
    for length in range(3, len(text.tokens)):
        guess, agrees = guesses.get(length, (None, None))
        learned = EMPTY_TREE if guess is None else DraftTree([guess], [ROOT], [0.5], ["learned"])
        tree = text.propose(length, learned)
        if guess in tree.token_ids:
            worth[agrees] = tree.probs[tree.token_ids.index(guess)]
    assert worth[True] > 0.8
    assert worth[False] < 0.2


def test_a_step_without_a_learned_tree_is_as_without_a_learned_drafter():
    with_empty, without = Text(), Text()
    with_empty.tokens = without.tokens = [*range(10, 30), *range(20, 40), *range(10, 30)] * 2
    for length in range(2, 100):
        ids = np.array(without.tokens[:length], np.int32)
        request = DraftRequest("a", ids, 1, 8, seed=None, max_depth=9)
        tree = with_empty.propose(length, EMPTY_TREE)
        assert tree == without.drafter.propose([request])[0]
    assert len(tree) > 3


def test_look_up_alone_is_not_taken_for_a_network_that_disagrees():
    """With more requests than are tapped, some have no learned tree; their hits are no news about disagreement."""
    text = Text()
    text.tokens = [*range(10, 40)] * 12
    for length in range(40, 300):
        learned = EMPTY_TREE if length % 2 else DraftTree([7], [ROOT], [0.5], ["learned"])
        tree = text.propose(length, learned)
    kinds = {kind for kind in text.drafter._calibration._counts if kind[0] == "merged"}
    assert {kind[2] for kind in kinds} == {"", "lookup", "learned"}
    assert tree.probs[0] > 0.9
