"""Trees in flight: what the scheduler grants is a prefix of what was proposed, or is verified as a chain."""

from tlt_engine.spec.tree import EMPTY_TREE, ROOT, DraftTree
from tlt_engine.worker.tree_store import TreeStore

FORK = DraftTree([5, 6, 7], [ROOT, ROOT, 0])


def store_of(tree):
    store = TreeStore()
    store.put("a", tree)
    return store


def test_whole_tree_comes_back_once():
    store = store_of(FORK)
    assert store.take("a", [5, 6, 7]) is FORK
    assert store.take("a", []) is EMPTY_TREE
    assert len(store) == 0


def test_prefix_keeps_its_shape():
    store = store_of(FORK)
    assert store.take("a", [5, 6]) == DraftTree([5, 6], [ROOT, ROOT])
    assert (store.num_truncated, store.num_mismatched) == (1, 0)


def test_other_tokens_are_a_chain():
    store = store_of(FORK)
    assert store.take("a", [5, 9]) == DraftTree.chain([5, 9])
    assert store.num_mismatched == 1


def test_padding_is_a_chain_that_is_no_mismatch():
    store = TreeStore()
    assert store.take("a", [-1, -1]) == DraftTree.chain([-1, -1])
    assert store.num_mismatched == 0


def test_request_left_out_of_a_step_keeps_its_tree():
    store = store_of(FORK)
    store.put("b", DraftTree([1], [ROOT]))
    assert store.take("b", [1]).token_ids == [1]
    assert store.take("a", [5, 6, 7]) is FORK


def test_empty_proposal_and_leaving_forget():
    store = store_of(FORK)
    store.put("a", EMPTY_TREE)
    assert len(store) == 0
    store.put("a", FORK)
    store.forget("a")
    assert len(store) == 0
