"""The rules of the file tree that make it readable: who may import whom, and how long a file may be."""

import ast
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "tlt_engine"
MAX_LINES = 400
KNOW_VLLM = ("worker", "server", "plugin.py", "compat.py")
"""What of the package may import vLLM."""
FREE_OF_WORKER = ("spec", "drafter_trainer", "drafter")
"""What must run without an engine, and so without ``worker``."""
SOURCE_SUFFIXES = {".py", ".h", ".cuh", ".cu", ".cpp"}


def package_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def source_files() -> list[Path]:
    roots = [PACKAGE, REPOSITORY / "csrc", REPOSITORY / "benchmarks", REPOSITORY / "tests"]
    return sorted(path for root in roots for path in root.rglob("*") if path.suffix in SOURCE_SUFFIXES)


def imported_modules(source: str, package: str) -> set[str]:
    """Returns the full names of all modules and names that a file imports, wherever in it, relative ones resolved."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parent, *([node.module] if node.module else [])])
            found.update([base, *(f"{base}.{alias.name}" for alias in node.names)])
        elif isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith("import_module"):
            argument = node.args[0]
            if isinstance(argument, ast.Constant):
                found.add(str(argument.value))
    return found


def imports_of(path: Path) -> set[str]:
    package = ".".join(path.relative_to(REPOSITORY).parts[:-1])
    return imported_modules(path.read_text(encoding="utf-8"), package)


def is_of(module: str, root: str) -> bool:
    return module == root or module.startswith(root + ".")


def part_of(path: Path) -> str:
    """Returns the folder or file of the package that a path belongs to."""
    return path.relative_to(PACKAGE).parts[0]


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(REPOSITORY)) for path in paths]


def test_only_the_parts_that_meet_vllm_import_it():
    wrong = [
        path
        for path in package_files()
        if part_of(path) not in KNOW_VLLM and any(is_of(module, "vllm") for module in imports_of(path))
    ]
    assert not names(wrong)


@pytest.mark.parametrize("folder", FREE_OF_WORKER)
def test_folder_runs_without_an_engine(folder):
    wrong = [
        path
        for path in (PACKAGE / folder).rglob("*.py")
        if any(is_of(module, root) for module in imports_of(path) for root in ("vllm", "tlt_engine.worker"))
    ]
    assert not names(wrong)


def test_package_imports_neither_benchmarks_nor_tests():
    wrong = [
        path
        for path in package_files()
        if any(is_of(module, root) for module in imports_of(path) for root in ("benchmarks", "tests"))
    ]
    assert not names(wrong)


def test_no_file_is_longer_than_one_concept():
    wrong = [path for path in source_files() if len(path.read_text(encoding="utf-8").splitlines()) > MAX_LINES]
    assert not names(wrong)


def test_sources_are_ascii():
    wrong = [path for path in source_files() if not path.read_bytes().isascii()]
    assert not names(wrong)


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("import vllm.config", "vllm.config"),
        ("def f():\n    from vllm import LLM", "vllm"),
        ("from ..worker import sampler", "tlt_engine.worker"),
        ("from .. import worker", "tlt_engine.worker"),
        ("from .tree import DraftTree", "tlt_engine.spec.tree"),
        ("import importlib\nimportlib.import_module('vllm.v1')", "vllm.v1"),
    ],
)
def test_imports_are_seen_wherever_and_however_they_are_written(source, module):
    assert module in imported_modules(source, "tlt_engine.spec")


def test_the_rules_are_looked_at_on_real_files():
    assert {"spec", "worker", "plugin.py", "compat.py"} <= {part_of(path) for path in package_files()}
    assert any(is_of(module, "vllm") for path in package_files() for module in imports_of(path))
