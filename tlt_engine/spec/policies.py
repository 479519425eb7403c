"""Who decides what a step does: the protocol of policies, and the two that never learn."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tlt_engine.spec.strategy import NO_SPECULATION, WITH_NETWORK, DrafterName, SpecStrategy


@dataclass(frozen=True)
class Choice:
    """What one step does."""

    strategy: SpecStrategy
    is_exploration: bool = False
    """Whether another one is thought to be better."""


IsPossible = Callable[[SpecStrategy], bool]
"""Says whether a strategy's drafter can be asked now."""

Predict = Callable[[SpecStrategy], float]
"""Returns the cost model's speed-up of a strategy over plain decoding."""


class Selector(Protocol):
    """Chooses the strategy of each step."""

    cuts_to_cost: bool
    """Whether rows that do not pay by the measured cost of a step are left out of its trees."""

    def select(self, batch_size: int, is_possible: IsPossible, predict: Predict) -> Choice:
        """Chooses for one step.

        Args:
            batch_size: requests that decode in it.
            is_possible: whether a strategy's drafter can be asked now.
            predict: the cost model's speed-up of a strategy over plain decoding.
        """

    def record(self, batch_size: int, choice: Choice, plain_seconds: float, seconds: float) -> None:
        """Learns what a chosen step gave.

        Args:
            batch_size: requests that decoded in it.
            choice: what it did.
            plain_seconds: what plain steps would have taken for the same tokens.
            seconds: what it took, drafting included.
        """

    def forget(self, drafters: Collection[DrafterName], num_kept: int) -> None:
        """Learns that drafters are no longer what they were.

        Args:
            drafters: which.
            num_kept: of each strategy's latest steps, how many still count.
        """

    def snapshot(self) -> dict[str, Any]:
        """Returns plain data for ``/tlt/status``."""


class FixedStrategy:
    """One strategy for every step, each request verifying as many rows as it allows."""

    cuts_to_cost = False

    def __init__(self, strategy: SpecStrategy) -> None:
        self._strategy = strategy

    def select(self, batch_size: int, is_possible: IsPossible, predict: Predict) -> Choice:
        """Returns the one strategy, or none while its drafter cannot be asked."""
        return Choice(self._strategy if is_possible(self._strategy) else NO_SPECULATION)

    def record(self, batch_size: int, choice: Choice, plain_seconds: float, seconds: float) -> None:
        """Learns nothing."""

    def forget(self, drafters: Collection[DrafterName], num_kept: int) -> None:
        """Has nothing to forget."""

    def snapshot(self) -> dict[str, Any]:
        """Returns nothing."""
        return {}


BatchSizeTable = Sequence[tuple[int, int, int]]
"""First and last batch size, and the draft tokens of a request between them."""


class StrategyTable(FixedStrategy):
    """Draft tokens by batch size, as vLLM's ``num_speculative_tokens_per_batch_size`` has them.

    Sizes between two ranges and beyond the last are served as the range before them.
    """

    def __init__(self, strategy: SpecStrategy, table: BatchSizeTable) -> None:
        """Takes a table that ``check_table`` let pass.

        Args:
            strategy: what drafts; its width is the table's.
            table: ranges of batch sizes.
        """
        super().__init__(strategy)
        self._table = [(first, _narrowed(strategy, num_tokens)) for first, _, num_tokens in sorted(table)]

    def select(self, batch_size: int, is_possible: IsPossible, predict: Predict) -> Choice:
        """Returns the strategy of the batch size, or none while its drafter cannot be asked."""
        strategy = next(found for first, found in reversed(self._table) if first <= max(1, batch_size))
        return Choice(strategy if is_possible(strategy) else NO_SPECULATION)


def check_table(table: BatchSizeTable, max_nodes: int) -> None:
    """Refuses a table that leaves open what is done at some batch size.

    Raises:
        ValueError: names the range.
    """
    if not table:
        raise ValueError("adaptive.table: it is empty; write ranges as [[1, 4, 5], [5, 16, 2], [17, 64, 0]]")
    before = 0
    for first, last, num_tokens in sorted(table):
        where = f"adaptive.table: range {[first, last, num_tokens]}"
        if not before < first <= last:
            raise ValueError(f"{where}: ranges ascend from 1 and do not overlap, first batch size before the last")
        if before == 0 and first != 1:
            raise ValueError(f"{where}: the first one starts at batch size 1")
        if not 0 <= num_tokens <= max_nodes:
            raise ValueError(f"{where}: draft tokens are between 0 and num_speculative_tokens={max_nodes}")
        before = last


def _narrowed(strategy: SpecStrategy, num_tokens: int) -> SpecStrategy:
    if num_tokens == 0:
        return NO_SPECULATION
    depth = strategy.draft_depth
    if strategy.drafter in WITH_NETWORK:
        depth = min(depth, num_tokens)
    width = 1 + num_tokens
    if strategy.drafter == "learned":
        width = min(width, 1 + replace(strategy, draft_depth=depth, verify_width=2).most_nodes)
    return replace(strategy, draft_depth=depth, verify_width=width)
