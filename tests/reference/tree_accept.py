"""Tree acceptance by recursion over explicit children, one request at a time."""


def accepted_path(parent_rows: list[int], draft_token_ids: list[int], target_token_ids: list[int]) -> list[int]:
    """Returns the rows below the root that the target's tokens lead to."""
    children: dict[int, list[int]] = {}
    for row, parent in enumerate(parent_rows):
        children.setdefault(parent, []).append(row)

    def descend(tip: int) -> list[int]:
        wanted = target_token_ids[tip]
        matching = [row for row in children.get(tip, []) if draft_token_ids[row] == wanted and wanted >= 0]
        return [min(matching), *descend(min(matching))] if matching else []

    return descend(0) if parent_rows else []
