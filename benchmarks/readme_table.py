"""Makes the tables of README and docs from result files, so that no number in them is typed.

A document marks a table's place with ``<!-- benchmarks:NAME -->`` and ``<!-- /benchmarks:NAME -->``; NAME is the
``bench`` of a result file, of which the newest counts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.result import RESULTS_DIR

REPOSITORY = Path(__file__).parent.parent


def newest_results(directory: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Returns the newest result file of each benchmark, by its name."""
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    for path in sorted(directory.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["bench"] not in found or data["date"] >= found[data["bench"]][1]["date"]:
            found[data["bench"]] = (path, data)
    return found


def make_table(path: Path, data: dict[str, Any], folder: Path = REPOSITORY) -> str:
    """Returns a result as a Markdown table with its conditions and a link to its file above it.

    Args:
        path: the result file.
        data: its content.
        folder: of the document that the table is for.
    """
    layout = _LAYOUTS.get(data["bench"], _plain_table)
    link = Path(os.path.relpath(path, folder)).as_posix() if path.is_relative_to(REPOSITORY) else path.name
    return f"{_conditions(data)} [{path.name}]({link})\n\n{layout(data)}"


def fill(document: str, tables: dict[str, str]) -> str:
    """Returns a document with each marked place filled; a place without a result stays as it is.

    Raises:
        ValueError: a place is opened and never closed.
    """

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        return f"{match['open']}\n{tables[name]}\n{match['close']}" if name in tables else match[0]

    pattern = r"(?P<open><!-- benchmarks:(?P<name>\w+) -->).*?(?P<close><!-- /benchmarks:(?P=name) -->)"
    opened = re.findall(r"<!-- benchmarks:(\w+) -->", document)
    filled, num_closed = re.subn(pattern, replace, document, flags=re.DOTALL)
    if num_closed != len(opened):
        raise ValueError(f"places for tables {opened}: {len(opened)} opened, {num_closed} closed")
    return filled


def _conditions(data: dict[str, Any]) -> str:
    """Says in one line what was measured on what."""
    settings, machine, versions = data["settings"], data["machine"], data["versions"]
    where = machine["gpu"] or f"{machine['cores']} cores of {machine['cpu']}"
    parts = [
        f"vLLM {versions.get('vllm', '?')}, torch {versions.get('torch', '?')}, {where}, commit {data['commit'][:7]}"
    ]
    named = {"model": "{}", "dtype": "{}", "temperature": "temperature {}", "max_tokens": "at most {} tokens"}
    parts += [text.format(settings[key]) for key, text in named.items() if key in settings]
    return "; ".join(parts) + ("; uncommitted changes" if data["dirty"] else "") + "."


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lays cells out as a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _find(data: dict[str, Any], name: str, case: str, metric: str) -> dict[str, Any] | None:
    """Returns the row of an engine, a case and a metric."""
    wanted = {"name": name, "case": case, "metric": metric}
    return next((row for row in data["rows"] if wanted.items() <= row.items()), None)


def _number(row: dict[str, Any] | None, digits: int = 1) -> str:
    """Writes a row's value, its ratio in brackets, and whether its outputs are wrong."""
    if row is None:
        return "-"
    ratio = f" ({row['ratio']:.2f}x)" if row.get("ratio") is not None else ""
    return f"{row['value']:.{digits}f}{ratio}"


def _names(data: dict[str, Any], key: str) -> list[str]:
    """Returns the different values of a key, in the order they came."""
    return list(dict.fromkeys(row[key] for row in data["rows"]))


def _decode_table(data: dict[str, Any]) -> str:
    """Tokens/s by engine and batch size, and the oracle."""
    cases = [case for case in _names(data, "case") if case.startswith("batch=") or case == "oracle"]
    rows = []
    for name in _names(data, "name"):
        cells = [_find(data, name, case, "tokens_per_s") for case in cases]
        equal = [cell["outputs_equal"] for cell in cells if cell is not None and cell["outputs_equal"] is not None]
        verdict = "" if not equal else "yes" if all(equal) else "NO"
        rows.append([f"`{name}`", *(_number(cell) for cell in cells), verdict])
    return _markdown(["tokens/s", *cases, "tokens equal stock's"], rows)


def _rollout_table(data: dict[str, Any]) -> str:
    """Tokens/s, wall time, acceptance length and time by live requests, by engine."""
    lives = [case for case in _names(data, "case") if case.endswith(" live")]
    rows = []
    for name in _names(data, "name"):
        speed = _find(data, name, "rollout", "tokens_per_s")
        same = _find(data, name, "same tokens", "wall_s")
        rows.append(
            [
                f"`{name}`" + (" (wrong text)" if speed and speed["outputs_equal"] is False else ""),
                _number(speed),
                _number(_find(data, name, "rollout", "wall_s")),
                "-" if same is None else f"{same['ratio']:.2f}x",
                _number(_find(data, name, "rollout", "acceptance_length"), 2),
                *(_number(_find(data, name, case, "live_batch_s")) for case in lives),
            ]
        )
    header = ["engine", "tokens/s", "wall, s", "wall against `tlt-off`, same tokens", "acceptance length"]
    return _markdown([*header, *(f"s at {case.removeprefix('rollout, ')}" for case in lives)], rows)


def _plain_table(data: dict[str, Any]) -> str:
    """Every row of a result as it is."""
    rows = [
        [f"`{row['name']}`", row["case"], row["metric"], _number(row, 2), row["unit"], row.get("baseline") or ""]
        for row in data["rows"]
    ]
    return _markdown(["name", "case", "metric", "value (ratio)", "unit", "baseline"], rows)


def _metric_table(metric: str, title: str) -> Callable[[dict[str, Any]], str]:
    """Makes a layout that shows one metric, by name and case."""

    def layout(data: dict[str, Any]) -> str:
        rows = [row for row in data["rows"] if row["metric"] == metric]
        cases = list(dict.fromkeys(row["case"] for row in rows))
        lines = []
        for name in dict.fromkeys(row["name"] for row in rows):
            values = {row["case"]: row["value"] for row in rows if row["name"] == name}
            lines.append([name, *(f"{values[case]:.2f}" for case in cases)])
        return _markdown([title, *cases], lines)

    return layout


_LAYOUTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "decode": _decode_table,
    "rollout": _rollout_table,
    "decode_learned": _decode_table,
    "adaptive": _decode_table,
    "rollout_learned": _rollout_table,
    "training": _metric_table("acceptance_length", "acceptance length"),
    "windows": _metric_table("acceptance_length", "acceptance length"),
    "drafter": _metric_table("tokens_per_step", "tokens a step"),
    "acceptance": _metric_table("acceptance_length", "acceptance length"),
}


def main() -> None:
    """Prints the tables and fills the documents; with ``--check`` ends with 1 if one is out of date."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readme_table", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS_DIR)
    parser.add_argument("--check", action="store_true", help="change nothing, fail where something would change")
    arguments = parser.parse_args()
    newest = newest_results(arguments.results)
    stale = []
    for document in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]:
        before = document.read_text(encoding="utf-8")
        tables = {name: make_table(path, data, document.parent) for name, (path, data) in newest.items()}
        after = fill(before, tables)
        if after != before:
            stale.append(document.name)
            if not arguments.check:
                document.write_text(after, encoding="utf-8")
    if not arguments.check:
        print("\n\n".join(make_table(path, data) for path, data in newest.values()))
    elif stale:
        sys.exit(f"tables out of date in {stale}; run python -m benchmarks.readme_table")


if __name__ == "__main__":
    main()
