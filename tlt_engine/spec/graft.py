"""Several draft trees of one request made one: paths that more than one holds are counted once.

Drafters fail at different places: what was written before is copied well by look-up, what was not is guessed by the
network (measured: ``benchmarks/results/``).
"""

from collections.abc import Iterable, Sequence

from tlt_engine.spec.tree import ROOT, DraftTree

Node = tuple[int, int, float, str]
"""Token id, index of the parent in the same tree or -1, estimate, source."""


def unite(trees: Iterable[Iterable[Node]]) -> DraftTree:
    """Unites trees by path; a node that several hold has the best estimate and its source.

    Args:
        trees: each with parents before children.

    Returns:
        A tree with parents before children.
    """
    node_of: dict[tuple[int, int], int] = {}
    probs: list[float] = []
    sources: list[str] = []
    for tree in trees:
        places = [ROOT]  # so that the place of parent -1 is the root
        for token_id, parent, prob, source in tree:
            node = node_of.setdefault((places[parent + 1], token_id), len(probs))
            if node == len(probs):
                probs.append(prob)
                sources.append(source)
            elif prob > probs[node]:
                probs[node], sources[node] = prob, source
            places.append(node)
    return DraftTree([token_id for _, token_id in node_of], [parent for parent, _ in node_of], probs, sources)


def graft(trees: Sequence[DraftTree], max_nodes: int) -> DraftTree:
    """Unites trees and keeps the likeliest nodes.

    Args:
        trees: valid trees whose nodes carry estimates and sources.
        max_nodes: most nodes of the result.

    Returns:
        A valid tree, parents before children.
    """
    united = unite(zip(tree.token_ids, tree.parents, tree.probs, tree.sources, strict=True) for tree in trees)
    # A child that one tree thinks likelier than the other thinks its parent says that the parent is as likely.
    for node in range(len(united) - 1, -1, -1):
        parent = united.parents[node]
        if parent != ROOT:
            united.probs[parent] = max(united.probs[parent], united.probs[node])
    ranked = sorted(range(len(united)), key=lambda node: -united.probs[node])[:max_nodes]
    return united.select(sorted(ranked))
