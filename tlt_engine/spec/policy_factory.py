"""From what a user wrote to the policy that chooses."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from tlt_engine.config import AdaptiveConfig, TltConfig
from tlt_engine.spec.policies import FixedStrategy, Selector, StrategyTable, check_table
from tlt_engine.spec.selector import BegSelector, ThompsonSelector
from tlt_engine.spec.strategy import Capacity, DrafterName, default_strategies, read_strategies


def possible_drafters(config: TltConfig) -> tuple[DrafterName, ...]:
    """Returns what strategies may name, as far as the configuration tells."""
    if config.drafter == "none":
        return ("none",)
    if config.drafter == "ngram":
        return ("none", "ngram")
    if config.drafter == "auto" or config.is_learned:
        return ("none", "ngram", "learned", "both")
    return ("none", "own")


def build_selector(config: TltConfig, drafters: Sequence[DrafterName] | None = None) -> Selector:
    """Builds the policy.

    Args:
        config: what the user wrote.
        drafters: what there is in this engine; None for whatever the configuration may bring.

    Raises:
        ValueError: a strategy or the table is not possible, or the policy cannot use them.
    """
    adaptive = config.adaptive
    _refuse_unused(adaptive)
    capacity = Capacity(
        drafters=possible_drafters(config),
        max_nodes=config.num_speculative_tokens,
        max_depth=config.learned.draft_depth,
        max_top_k=config.learned.top_k,
    )
    if adaptive.strategies is not None:
        wanted = [msgspec.to_builtins(strategy) for strategy in adaptive.strategies]
        strategies = read_strategies(wanted, capacity)
    else:
        there = capacity.drafters if drafters is None else drafters
        strategies = default_strategies(replace(capacity, drafters=tuple(there)))
    if adaptive.policy == "fixed":
        return FixedStrategy(strategies[-1])  # the user's, or else the one that drafts most
    if adaptive.policy == "table":
        assert adaptive.table is not None
        check_table(adaptive.table, config.num_speculative_tokens)
        return StrategyTable(strategies[-1], adaptive.table)
    kind = ThompsonSelector if adaptive.policy == "thompson" else BegSelector
    return kind(strategies, max_exploration=adaptive.max_exploration, seed=adaptive.seed)


def _refuse_unused(adaptive: AdaptiveConfig) -> None:
    if (adaptive.table is not None) != (adaptive.policy == "table"):
        raise ValueError(
            f"adaptive.table: it belongs to adaptive.policy 'table', and that needs one; the policy is "
            f"{adaptive.policy!r}"
        )
    if adaptive.strategies is not None and not adaptive.strategies:
        raise ValueError("adaptive.strategies: the list is empty; leave it out for a set that fits the drafter")
    if adaptive.policy in ("fixed", "table") and len(adaptive.strategies or ()) > 1:
        raise ValueError(f"adaptive.strategies: policy {adaptive.policy!r} takes one")
