"""The JSON file a benchmark leaves behind: its rows, its series, and everything needed to repeat the run."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

RESULTS_DIR = Path(__file__).parent / "results"

Better = Literal["higher", "lower"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number of one engine in one case, over all repetitions."""

    name: str
    case: str
    metric: str
    value: float
    unit: str
    p10: float
    p90: float
    n: int
    """Repetitions."""
    better: Better
    baseline: str | None = None
    ratio: float | None = None
    """Above 1 is better than the baseline; the median over pairs of runs."""
    outputs_equal: bool | None = None
    """None where equality is not owed."""
    p95: float | None = None
    """Only for ``step_ms``, whose value is the median step."""

    def to_json(self) -> dict[str, Any]:
        """Returns the row; without a baseline the keys that speak of one are left out."""
        data = asdict(self)
        if self.baseline is None:
            del data["baseline"], data["ratio"]
        if self.p95 is None:
            del data["p95"]
        return data


@dataclass(frozen=True, kw_only=True)
class Series:
    """A curve, such as live requests over time."""

    name: str
    x: str
    y: str
    points: list[tuple[float, float]]


@dataclass(kw_only=True)
class Result:
    """Everything one run of a benchmark leaves behind."""

    bench: str
    command: str
    commit: str
    dirty: bool
    machine: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]
    date: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))
    rows: list[Row] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)

    def file_name(self) -> str:
        """Returns ``<bench>_<YYYYMMDD>_<commit7>_<machine>.json``."""
        day = self.date[:10].replace("-", "")
        return f"{self.bench}_{day}_{self.commit[:7]}_{machine_slug(self.machine)}.json"

    def to_json(self) -> dict[str, Any]:
        """Returns the file's content."""
        data = {key: value for key, value in vars(self).items() if key not in ("rows", "series")}
        data["rows"] = [row.to_json() for row in self.rows]
        data["series"] = [asdict(series) for series in self.series]
        return data

    def write(self, directory: Path = RESULTS_DIR) -> Path:
        """Writes the file and returns where.

        Raises:
            ValueError: a value holds an absolute path; result files are published.
        """
        text = json.dumps(self.to_json(), indent=1, ensure_ascii=True)
        if match := re.search(r'"[^"]*(?<![\w.:/])/(?:home|root|tmp|work|usr|opt|mnt|data)/[^"]*"', text):
            raise ValueError(f"result of {self.bench}: holds a path of this machine: {match.group()}")
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / self.file_name()
        path.write_text(text + "\n", encoding="utf-8")
        return path


def quantile(values: Sequence[float], share: float) -> float:
    """Returns a quantile by linear interpolation between the two nearest values.

    Args:
        values: At least one number, in any order.
        share: Between 0 and 1.
    """
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def paired_ratio(values: Sequence[float], baseline: Sequence[float], better: Better) -> float:
    """Returns the median over pairs of runs of how much better the values are than the baseline.

    Args:
        values: One number a run.
        baseline: As many, each measured next to its partner.
        better: Which way the metric improves.

    Raises:
        ValueError: the runs do not pair up.
    """
    if len(values) != len(baseline) or not values:
        raise ValueError(f"paired_ratio: {len(values)} runs against {len(baseline)} of the baseline; need equal counts")
    pairs = zip(values, baseline, strict=True)
    return median(mine / theirs if better == "higher" else theirs / mine for mine, theirs in pairs)


def summarise(values: Sequence[float], *, baseline: tuple[str, Sequence[float]] | None = None, **fields: Any) -> Row:
    """Makes a row of the runs' values: median, p10, p90, and the paired ratio when there is a baseline.

    Args:
        values: One number a run.
        baseline: Name and values of the engine compared with.
        **fields: The other fields of ``Row``; ``better`` defaults to "lower" for times and "higher" otherwise.
    """
    fields.setdefault("better", "lower" if fields["unit"] in ("s", "ms", "us", "of wall time") else "higher")
    ratio = None if baseline is None else round(paired_ratio(values, baseline[1], fields["better"]), 4)
    return Row(
        value=round(median(values), 4),
        p10=round(quantile(values, 0.1), 4),
        p90=round(quantile(values, 0.9), 4),
        n=len(values),
        baseline=None if baseline is None else baseline[0],
        ratio=ratio,
        **fields,
    )


def thin_out(points: Sequence[tuple[float, float]], limit: int = 200) -> list[tuple[float, float]]:
    """Keeps at most ``limit`` points of a curve, evenly spread, first and last included."""
    if len(points) <= limit:
        return [(round(x, 3), round(y, 3)) for x, y in points]
    kept = [points[round(index * (len(points) - 1) / (limit - 1))] for index in range(limit)]
    return [(round(x, 3), round(y, 3)) for x, y in kept]


def machine_slug(machine: Mapping[str, Any]) -> str:
    """Returns a short name of a machine for file names, such as ``2core-epyc``; a GPU's name goes before the CPU's."""
    skipped = {"amd", "intel", "r", "tm", "cpu", "nvidia", "processor", "gen", "th", "core", "geforce", "tesla"}
    words = re.findall(r"[a-z]+[a-z0-9]*", str(machine.get("gpu") or machine["cpu"]).lower())
    kind = next((word for word in words if word not in skipped), "unknown")
    return kind if machine.get("gpu") else f"{machine['cores']}core-{kind}"
