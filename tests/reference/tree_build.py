"""Tree building by taking, one at a time, the likeliest candidate whose parent is already in the tree."""


def likeliest_tree(scores: list[float], parents: list[int], max_nodes: int) -> tuple[list[int], list[int]]:
    """Returns the candidates in the order they were taken, and the place of each one's parent, -1 for the root."""
    taken: list[int] = []
    while len(taken) < min(max_nodes, len(scores)):
        open_ones = [
            candidate
            for candidate in range(len(scores))
            if candidate not in taken and (parents[candidate] < 0 or parents[candidate] in taken)
        ]
        taken.append(max(open_ones, key=lambda candidate: (scores[candidate], -candidate)))
    return taken, [taken.index(parents[node]) if parents[node] >= 0 else -1 for node in taken]
