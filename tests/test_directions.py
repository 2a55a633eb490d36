"""The pure core imports nothing that touches the world, neither itself nor through our modules."""

import ast
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PURE = (
    "rng",
    "permutation",
    "plan",
    "recipe",
    "crop",
    "wire",
    "session",
    "tiles",
    "packing",
    "augment",
    "cache_plan",
    "agreement",
    "answer_checks",
)
IMPURE = {
    "asyncio",
    "datetime",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "secrets",
    "select",
    "selectors",
    "socket",
    "subprocess",
    "threading",
    "time",
    "uuid",
    "zmq",
}
OURS = ("feeder", "trainer_client", "bench")


def module_path(module: str, root: Path = ROOT) -> Path | None:
    """The source of one of our modules; None for others' and for the C extension."""
    base = root.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def imported_modules(path: Path, package: str) -> Iterator[str]:
    """Every module that a file imports anywhere, also inside functions, by its full name."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: 1 - node.level or None] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def import_chains(module: str, root: Path = ROOT) -> Iterator[tuple[str, ...]]:
    """The way from ``module`` to everything that it imports, through our own modules."""
    waiting: deque[tuple[str, ...]] = deque([(module,)])
    seen = {module}
    while waiting:
        chain = waiting.popleft()
        path = module_path(chain[-1], root)
        if path is None:
            continue
        package = chain[-1] if path.name == "__init__.py" else chain[-1].rpartition(".")[0]
        for imported in imported_modules(path, package):
            yield (*chain, imported)
            top = imported.split(".")[0]
            for ours in (top, imported):
                if top in OURS and ours not in seen:
                    seen.add(ours)
                    waiting.append((*chain, ours))


def is_impure(module: str) -> bool:
    return module.split(".")[0] in IMPURE or module.startswith("numpy.random")


@pytest.mark.parametrize("name", PURE)
def test_a_pure_module_reaches_nothing_impure(name: str) -> None:
    if module_path(f"feeder.{name}") is None:
        pytest.skip(f"feeder/{name}.py is not there yet")
    impure = [
        " → ".join(chain) for chain in import_chains(f"feeder.{name}") if is_impure(chain[-1])
    ]
    assert not impure


@pytest.mark.parametrize("name", PURE)
def test_a_pure_module_uses_no_hidden_state(name: str) -> None:
    path = module_path(f"feeder.{name}")
    if path is None:
        pytest.skip(f"feeder/{name}.py is not there yet")
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) != ("np", "random")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            # hash() of text differs between processes; the others reach for the world
            assert node.func.id not in {"hash", "open", "input", "__import__", "exec", "eval"}


def test_the_walk_sees_every_kind_of_import(tmp_path: Path) -> None:
    package = tmp_path / "feeder"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("import uuid\n")
    (package / "a.py").write_text("def late():\n    from .inner import b\n")
    (package / "inner" / "__init__.py").write_text("")
    (package / "inner" / "b.py").write_text("from ..c import value\nimport numpy as np\n")
    (package / "c.py").write_text("import os.path\nfrom numpy.random import default_rng\n")
    chains = set(import_chains("feeder.a", tmp_path))
    assert ("feeder", "uuid") in {chain[-2:] for chain in chains}
    assert ("feeder.a", "feeder.inner.b", "feeder.c", "os.path") in chains
    assert ("feeder.a", "feeder.inner.b", "feeder.c", "numpy.random") in chains
    impure = {chain[-1] for chain in chains if is_impure(chain[-1])}
    assert impure == {"uuid", "os.path", "numpy.random", "numpy.random.default_rng"}
