"""Several draft trees of one request made one: paths that more than one holds are counted once.

Drafters fail at different places: what was written before is copied well by look-up, what was not is guessed by the
network (measured: ``benchmarks/results/``).
"""

from collections.abc import Iterable

from tlt_engine.spec.tree import ROOT, DraftTree

Node = tuple[int, int, float, str]
"""Token id, index of the parent in the same tree or -1, estimate, source."""


def unite(trees: Iterable[Iterable[Node]]) -> tuple[DraftTree, list[int]]:
    """Unites trees by path; a node that several hold has the best estimate and its source.

    Args:
        trees: each with parents before children.

    Returns:
        A tree with parents before children, and for each node the trees that hold it: bit ``i`` for tree ``i``.
    """
    node_of: dict[tuple[int, int], int] = {}
    probs: list[float] = []
    sources: list[str] = []
    holders: list[int] = []
    for number, tree in enumerate(trees):
        places = [ROOT]  # so that the place of parent -1 is the root
        for token_id, parent, prob, source in tree:
            node = node_of.setdefault((places[parent + 1], token_id), len(probs))
            if node == len(probs):
                probs.append(prob)
                sources.append(source)
                holders.append(0)
            elif prob > probs[node]:
                probs[node], sources[node] = prob, source
            holders[node] |= 1 << number
            places.append(node)
    token_ids, parents = [token_id for _, token_id in node_of], [parent for parent, _ in node_of]
    return DraftTree(token_ids, parents, probs, sources), holders
