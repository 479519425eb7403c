"""``tlt-engine inspect LOG.jsonl``: what was decided by batch size, what it brought, and a picture of it."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tlt_engine.spec.cost_model import size_class
from tlt_engine.spec.decision_log import Decision, read_decisions

BINS = 200
"""Points of a curve."""


def run(log: Path) -> int:
    """Prints one line for each size of batch and strategy and writes ``LOG.png`` where matplotlib is installed.

    Raises:
        ValueError: the log cannot be read, or holds nothing.
    """
    decisions = read_decisions(log)
    if not decisions:
        raise ValueError(f"{log}: no step is logged yet")
    explored = sum(decision.is_exploration for decision in decisions)
    print(f"{len(decisions)} decode steps, {explored / len(decisions):.1%} of them to try something else")
    print(f"{'batch':>9}  {'strategy':<16} {'steps':>7} {'tokens/step':>12} {'speed-up':>9} {'drafting':>9}")
    groups: dict[tuple[int, str], list[Decision]] = defaultdict(list)
    for decision in decisions:
        groups[size_class(decision.batch_size), decision.strategy].append(decision)
    for (_, strategy), steps in sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1]))):
        sizes = sorted({decision.batch_size for decision in steps})
        batch = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]}-{sizes[-1]}"
        tokens = sum(decision.batch_size + decision.num_accepted for decision in steps) / len(steps)
        share = sum(decision.draft_seconds for decision in steps) / sum(decision.seconds for decision in steps)
        print(f"{batch:>9}  {strategy:<16} {len(steps):>7} {tokens:>12.2f} {_speedup(steps):>8.2f}x {share:>8.1%}")
    picture = log.with_suffix(".png")
    print(f"picture: {picture}" if _plot(decisions, picture) else "no picture: matplotlib is not installed")
    return 0


def _speedup(steps: Sequence[Decision]) -> float:
    """Tokens a second against plain steps of the same requests, over all the steps."""
    gained = sum(
        (decision.batch_size + decision.num_accepted) / decision.batch_size * decision.plain_seconds
        for decision in steps
    )
    return gained / sum(decision.seconds for decision in steps)


def _plot(decisions: Sequence[Decision], picture: Path) -> bool:
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (speed, batch, chosen) = pyplot.subplots(3, 1, figsize=(9, 8), sharex=True, layout="constrained")
    size = max(1, len(decisions) // BINS)
    parts = [decisions[start : start + size] for start in range(0, len(decisions), size)]
    times = [part[-1].seconds_since_start for part in parts]
    speed.plot(times, [_speedup(part) for part in parts])
    speed.axhline(1.0, color="#7f7f7f", linewidth=0.8)
    speed.set_ylabel("speed-up over plain steps")
    batch.plot(times, [sum(decision.batch_size for decision in part) / len(part) for part in parts])
    batch.set_ylabel("requests in a step")
    names = sorted({decision.strategy for decision in decisions})
    shares = [[sum(decision.strategy == name for decision in part) / len(part) for part in parts] for name in names]
    chosen.stackplot(times, shares, labels=names)
    chosen.set_ylabel("share of steps")
    chosen.set_xlabel("seconds since the start")
    chosen.legend(loc="lower left", fontsize="small")
    figure.savefig(picture, dpi=120)
    pyplot.close(figure)
    return True
