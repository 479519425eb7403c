"""What a step may do: which drafter drafts, how deep, how wide, and how many rows the target verifies."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

DrafterName = Literal["none", "ngram", "learned", "both", "own"]
"""``ngram`` is look-up, ``learned`` the network, ``both`` their united trees, ``own`` the user's class."""

WITH_NETWORK: tuple[DrafterName, ...] = ("learned", "both")

SHALLOW_DEPTH = 1
"""Depth of the cheapest tree with the network: its first pass is made for every request whatever the depth."""


@dataclass(frozen=True, kw_only=True)
class SpecStrategy:
    """How far one step speculates."""

    drafter: DrafterName
    draft_depth: int = 0
    """Passes of the network in a step, the depth of its tree; 0 without a network."""
    top_k: int = 0
    """Children kept of a node of the network's tree; 1 makes it a chain, 0 is for drafters without a network."""
    verify_width: int = 1
    """Most rows of a request that the target verifies, root included."""

    def __post_init__(self) -> None:
        """Refuses what contradicts itself.

        Raises:
            ValueError: names the field and what it may be.
        """
        if self.drafter not in get_args(DrafterName):
            raise ValueError(f"drafter: expected one of {list(get_args(DrafterName))}, got {self.drafter!r}")
        if (self.drafter == "none") != (self.verify_width == 1):
            raise ValueError(
                f"verify_width={self.verify_width} with drafter {self.drafter!r}: the root alone is verified with "
                "drafter 'none', and with it only"
            )
        for name, value in (("draft_depth", self.draft_depth), ("top_k", self.top_k)):
            if (value > 0) != (self.drafter in WITH_NETWORK) or value < 0:
                raise ValueError(
                    f"{name}={value} with drafter {self.drafter!r}: it is at least 1 with 'learned' and 'both', "
                    "and 0 with the others"
                )
        if self.drafter == "learned" and self.verify_width > 1 + self.most_nodes:
            raise ValueError(
                f"verify_width={self.verify_width}: {self.draft_depth} passes with top_k={self.top_k} give at most "
                f"{self.most_nodes} draft tokens, so at most {1 + self.most_nodes}"
            )

    @property
    def most_nodes(self) -> int:
        """Nodes that the network's tree can have."""
        return self.top_k + max(0, self.draft_depth - 1) * self.top_k**2

    @property
    def drafts(self) -> bool:
        """Whether anything is drafted."""
        return self.drafter != "none"

    @property
    def name(self) -> str:
        """A short name: ``both-d4-k4-w16`` is four passes, four children a node and sixteen rows."""
        if not self.drafts:
            return "none"
        shape = f"-d{self.draft_depth}-k{self.top_k}" if self.drafter in WITH_NETWORK else ""
        return f"{self.drafter}{shape}-w{self.verify_width}"


NO_SPECULATION = SpecStrategy(drafter="none")


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What strategies must fit into."""

    drafters: tuple[DrafterName, ...]
    """What this engine can draft with, ``none`` included."""
    max_nodes: int
    """Most draft tokens of a request in a step."""
    max_depth: int
    """Most passes of the network."""
    max_top_k: int
    """Most children of a node of the network's tree."""


def default_strategies(capacity: Capacity) -> tuple[SpecStrategy, ...]:
    """Returns the strategies that an engine chooses among if the user names none.

    Rows are cut step by step to what the measured cost of a step justifies, so each keeps the widest tree; they differ
    in what drafting costs.
    """
    depth, top_k = capacity.max_depth, capacity.max_top_k
    width = 1 + capacity.max_nodes
    found = [NO_SPECULATION]
    for drafter in capacity.drafters:
        if drafter in ("ngram", "own"):
            found.append(SpecStrategy(drafter=drafter, verify_width=width))
        elif drafter in WITH_NETWORK:
            shapes = ((depth, 1), (depth, top_k)) if drafter == "learned" else ((SHALLOW_DEPTH, top_k), (depth, top_k))
            found += [_with_network(drafter, *shape, width) for shape in shapes]
    return tuple(dict.fromkeys(found))


def read_strategies(wanted: Sequence[Mapping[str, Any]], capacity: Capacity) -> tuple[SpecStrategy, ...]:
    """Returns the strategies a user wrote; ``draft_depth``, ``top_k`` and ``verify_width`` default to the most.

    Args:
        wanted: fields of ``SpecStrategy``, one mapping a strategy.
        capacity: what they must fit into.

    Raises:
        ValueError: one of them is not possible here; the text names it and what would be.
    """
    strategies = []
    for number, fields in enumerate(wanted):
        where = f"adaptive.strategies[{number}]"
        drafter = fields["drafter"]
        if drafter not in capacity.drafters:
            raise ValueError(
                f"{where}.drafter: {drafter!r} is not to be had with this drafter; there are {list(capacity.drafters)}"
            )
        for key, most in (
            ("draft_depth", capacity.max_depth),
            ("top_k", capacity.max_top_k),
            ("verify_width", 1 + capacity.max_nodes),
        ):
            if (value := fields.get(key)) is not None and value > most:
                raise ValueError(f"{where}.{key}: {value} is more than the {most} that this engine is set up for")
        try:
            strategies.append(_filled(fields, capacity))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
    if len(set(strategies)) != len(strategies):
        raise ValueError(f"adaptive.strategies: the same one twice in {[strategy.name for strategy in strategies]}")
    return tuple(strategies)


def to_plain(strategies: Iterable[SpecStrategy]) -> list[dict[str, Any]]:
    """Returns strategies as plain data with their names."""
    return [{"name": strategy.name, **asdict(strategy)} for strategy in strategies]


def _with_network(drafter: DrafterName, depth: int, top_k: int, width: int) -> SpecStrategy:
    if drafter == "learned":
        width = min(width, 1 + top_k + (depth - 1) * top_k**2)
    return SpecStrategy(drafter=drafter, draft_depth=depth, top_k=top_k, verify_width=width)


def _filled(fields: Mapping[str, Any], capacity: Capacity) -> SpecStrategy:
    drafter, width = fields["drafter"], fields.get("verify_width")
    if drafter not in WITH_NETWORK:
        given = {key: value for key, value in fields.items() if value is not None}
        return SpecStrategy(**{"verify_width": 1 if drafter == "none" else 1 + capacity.max_nodes, **given})
    depth, top_k = fields.get("draft_depth"), fields.get("top_k")
    depth = capacity.max_depth if depth is None else depth
    top_k = capacity.max_top_k if top_k is None else top_k
    if width is None:
        return _with_network(drafter, depth, top_k, 1 + capacity.max_nodes)
    return SpecStrategy(drafter=drafter, draft_depth=depth, top_k=top_k, verify_width=width)
