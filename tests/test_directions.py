"""Import rules: every import of every module, direct and transitive, against one table.

A *room* is a folder of ``feeder``, ``trainer_client`` or ``bench``, or a module with a row of its
own in the table. Modules are listed from the disk: a folder without a row is a problem, and so is a
row without modules. Imports count wherever they stand, in functions and for type checkers too; and
importing a module runs the ``__init__`` of each package above it.
"""

import ast
import functools
import re
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = ("feeder", "trainer_client", "bench")
MODULES_MAX = 25  # in a folder


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PURE = words(
    "__future__ abc bisect collections contextlib dataclasses decimal difflib enum errno functools "
    "hashlib itertools json math operator re reprlib statistics struct sys types typing numpy "
    "msgspec"
)
"""All that pure rooms reach besides ours: no clock, file, thread, socket or process."""

IMPURE_NUMPY = words(
    "random memmap load save savez savez_compressed fromfile fromregex loadtxt savetxt genfromtxt"
)
"""Names of numpy that pure modules may not use: hidden state and files."""

IMPURE_CALLS = {"hash", "open", "input", "exec", "eval"}
"""Built-in functions that pure modules may not call; hash() of text differs between processes."""

DYNAMIC_IMPORTS = {
    "feeder",
    "trainer_client",
    "feeder.pack.task_pool",
    "feeder.source.kinds",
    "trainer_client.reference.models",
}
"""Modules that import by name at run time, which the table cannot check.

They are faces, task_pool, the kinds of source, and the models, which import timm where it is
installed.

``feeder`` imports what packs at the first use of ``feeder.pack_samples``, so ``import feeder``
imports nothing. Types come from its stub, ``__init__.pyi``, which no import runs.
"""

THIRD_PARTY = words(
    "PIL altair botocore google_crc32c lmdb mlperf_logging msgspec numpy obstore prometheus_client "
    "psutil pyarrow ray rich scipy tensorboardX torch tqdm turbojpeg vl_convert wandb xxhash zmq "
    "zstandard"
)

TRAIN_EXTRA = {"altair", "mlperf_logging", "tensorboardX", "vl_convert", "wandb"}
"""What the reference job reports with, where it is installed."""


class Row(NamedTuple):
    """What a room may import: our rooms and third-party packages (None: any)."""

    rooms: frozenset[str]
    packages: frozenset[str] | None = None
    is_pure: bool = False


def row(rooms: str = "", packages: str | None = None, *, pure: bool = False) -> Row:
    return Row(words(rooms), None if packages is None else words(packages), pure)


BASE = "feeder errors metrics remedies plan wire process"
DECODING = f"{BASE} host jpeg jpeg.crop_decode dataset sample sample.cache_plan"
JOB = "trainer_client.reference"

# Rooms of ``feeder`` are named without that prefix; "feeder" itself holds the version.
ROOMS: Mapping[str, Row] = {
    "feeder": row("", "", pure=True),
    "errors": row("", "", pure=True),
    "metrics": row("", "msgspec", pure=True),
    "diagnosis": row("metrics", "", pure=True),
    "remedies": row("", "", pure=True),
    "installation": row("", ""),
    "plan": row("errors", "numpy msgspec", pure=True),
    "wire": row("errors metrics plan", "numpy msgspec", pure=True),
    "session": row("errors metrics remedies plan wire", "", pure=True),
    "process": row("errors installation metrics", "msgspec"),
    "host": row("errors metrics process", "numpy psutil"),
    "store": row("errors installation process", "botocore obstore"),
    "security": row("errors wire process", "zmq"),
    "client.core": row("errors metrics plan wire", "numpy msgspec", pure=True),
    "client": row("errors metrics plan wire process security client.core", "numpy msgspec zmq"),
    "jpeg": row("feeder errors installation plan", "numpy PIL turbojpeg"),
    "jpeg.crop_decode": row("jpeg", "numpy", pure=True),
    "dataset": row("errors plan process jpeg store", "numpy msgspec xxhash"),
    "sample.cache_plan": row("", "msgspec", pure=True),
    "sample": row(
        "errors plan jpeg jpeg.crop_decode dataset sample.cache_plan", "numpy msgspec PIL"
    ),
    "source.location.splits": row("", "", pure=True),
    "source.label_files": row(
        "errors plan process source.location source.location.splits", "numpy xxhash"
    ),
    "source.location": row("errors process store source.location.splits", ""),
    "source": row(
        "errors plan process source.label_files source.location source.location.splits",
        "google_crc32c lmdb numpy msgspec pyarrow scipy xxhash zstandard",
    ),
    "convert": row("errors plan process jpeg dataset source", "numpy PIL turbojpeg"),
    "choose": row("errors plan process store dataset", "numpy xxhash"),
    "survey": row("errors plan process jpeg jpeg.crop_decode dataset", "numpy xxhash PIL"),
    "pack": row(
        "errors plan process host jpeg jpeg.crop_decode dataset source source.label_files "
        "source.location convert survey",
        "numpy msgspec xxhash PIL turbojpeg",
    ),
    "pack_cache": row(
        "errors process store dataset source source.location source.location.splits pack",
        "msgspec xxhash",
    ),
    "repack": row("errors plan process jpeg jpeg.crop_decode dataset pack", "numpy msgspec"),
    "disk_cache": row(
        "errors metrics plan wire process security client client.core dataset store",
        "numpy msgspec xxhash",
    ),
    "worker": row(
        "errors plan wire process jpeg dataset sample sample.cache_plan", "numpy msgspec"
    ),
    "node": row(f"{DECODING} security session worker disk_cache", "numpy msgspec zmq"),
    "monitoring": row("errors metrics process diagnosis", "prometheus_client"),
    "doctor": row("errors installation process host jpeg security sample", "zmq"),
    "daemon": row(
        f"{DECODING} security client session choose worker disk_cache node diagnosis monitoring "
        "doctor",
        "msgspec",
    ),
    "cli": row(
        f"{DECODING} security client client.core source choose survey pack pack_cache repack "
        "diagnosis doctor daemon screens cluster store disk_cache",
        "msgspec numpy zmq PIL",
    ),
    "cluster.policy": row("process", "", pure=True),
    "cluster": row(
        "errors installation metrics wire process dataset pack security client node cluster.policy",
        "msgspec ray zmq",
    ),
    "screens": row("errors metrics diagnosis", "msgspec rich"),
    "__main__": row("process cli", ""),
    "trainer_client": row(
        "feeder errors installation plan wire process security client client.core",
        "numpy msgspec torch tqdm",
    ),
    f"{JOB}.recipes": row("errors plan", "msgspec"),
    f"{JOB}.optimisers": row("", "torch"),
    f"{JOB}.parallel": row("errors", "torch"),
    f"{JOB}.results": row("", ""),
    f"{JOB}.tracking": row(
        f"errors installation metrics process {JOB}.results",
        "altair mlperf_logging msgspec tensorboardX vl_convert wandb",
    ),
    JOB: row(
        f"feeder errors installation plan process trainer_client {JOB}.recipes {JOB}.optimisers "
        f"{JOB}.parallel {JOB}.results {JOB}.tracking",
        "msgspec numpy torch",
    ),
    "trainer_client.train": row(f"process {JOB} {JOB}.recipes {JOB}.results", ""),
    "trainer_client.evaluate": row(f"process {JOB}", ""),
}

INNER = {room for room in ROOMS if room.startswith("source.")}
PRODUCT = " ".join({*ROOMS} - INNER - {"__main__", f"{JOB}.results"})
"""What benches may import: of ``source``, only what it is for others."""
WITH_DATA = row(f"{PRODUCT} bench bench.data")
TABLE: Mapping[str, Row] = {
    **ROOMS,
    "bench": row(PRODUCT),
    "bench.data": row(f"{PRODUCT} bench"),
    **{
        f"bench.{room}": WITH_DATA
        for room in words("micro stream store chaos cluster rivals demo gpu")
    },
    "bench.rivals.scripts": row(f"{PRODUCT} bench"),
    "bench.pack": row(f"{PRODUCT} bench bench.data bench.rivals"),
    "bench.plots": row("errors process bench bench.cluster bench.micro bench.rivals bench.stream"),
    "bench.cli": row(
        "errors jpeg process bench bench.chaos bench.cluster bench.data bench.gpu bench.micro "
        "bench.pack bench.plots bench.rivals bench.store bench.stream"
    ),
    "bench.__main__": row("process bench.cli"),
}

KNOWN = {*sys.stdlib_module_names, "_typeshed", *OURS}  # all else is third-party
PARTS = {"jpeg.crop_decode", "sample.cache_plan", "source.location.splits"}
"""Pure modules in impure rooms."""
TEST_ONLY_FOLDERS = words(
    "support exact faults fuzz numa ui stores smoke slurm kubernetes frameworks "
    "frameworks/recording frameworks/scripts source/golden"
)


class Module(NamedTuple):
    """What a module's syntax tree says; millions of nodes, if kept, would slow every collection."""

    path: str  # below the root
    imports: tuple[ast.Import | ast.ImportFrom, ...]
    """The import statements, wherever they stand."""

    impure_names: tuple[str, ...]
    """The impure names that it uses: of numpy, whatever its alias, and built-in."""

    imports_dynamically: bool
    """Whether it uses a function that imports by name."""

    @property
    def is_package(self) -> bool:
        return self.path.endswith(("/__init__.py", "/__init__.pyi"))


@functools.cache  # most modules of planted houses are those of the project
def parse(path: str, text: str) -> Module:
    tree = ast.parse(text)
    imports = tuple(find_imports(tree))
    # A walk over all expressions costs more than parsing, so only where the text has such a name.
    is_dynamic = DYNAMIC.search(text) is not None and imports_dynamically(tree)
    names = tuple(find_impure_names(tree, imports)) if IMPURE.search(text) else ()
    return Module(path, imports, names, is_dynamic)


DYNAMIC = re.compile("import_module|__import__")
IMPURE = re.compile(rf"\.\s*({'|'.join(IMPURE_NUMPY)})\b|(?<![.\w])({'|'.join(IMPURE_CALLS)})\s*\(")


def find_imports(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """Walk the statements alone: no expression holds an import."""
    blocks: list[ast.AST] = [tree]
    while blocks:
        block = blocks.pop()
        if isinstance(block, ast.Import | ast.ImportFrom):
            yield block
        for field in ("body", "handlers", "orelse", "finalbody", "cases"):
            blocks += getattr(block, field, ())


def find_impure_names(
    tree: ast.Module, imports: Iterable[ast.Import | ast.ImportFrom]
) -> Iterator[str]:
    aliases = {
        alias.asname or alias.name
        for node in imports
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "numpy"
    }
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                if owner in aliases and name in IMPURE_NUMPY:
                    yield f"numpy.{name}"
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS:
                yield f"{name}()"


def imports_dynamically(tree: ast.Module) -> bool:
    dynamic = {"import_module", "__import__"}
    return any(
        (isinstance(node, ast.Name) and node.id in dynamic)
        or (isinstance(node, ast.Attribute) and node.attr in dynamic)
        or (isinstance(node, ast.alias) and node.name in dynamic)
        for node in ast.walk(tree)
    )


@functools.cache
def read_texts() -> Mapping[str, str]:
    """Read all modules of the project, by their paths below its root."""
    paths = (path for top in OURS for path in (ROOT / top).rglob("*.py*"))
    return {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
        for path in paths
        if path.suffix in {".py", ".pyi"}
    }


class House:
    """All modules of the project, or of a copy with planted faults, and what they import."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.modules: dict[str, Module] = {}
        for path in sorted(texts, reverse=True):  # of x.py and x.pyi, the .py comes last and wins
            name = path.rpartition(".")[0].replace("/", ".").removesuffix(".__init__")
            self.modules[name] = parse(path, texts[path])
        self._imports: dict[str, frozenset[str]] = {}

    def room(self, module: str) -> str:
        """Name the room of a module; the table may lack it."""
        name = module.removeprefix("feeder.")
        if name in TABLE or self.modules[module].is_package:
            return name
        return module.rpartition(".")[0].removeprefix("feeder.")

    def imports(self, module: str) -> frozenset[str]:
        """What a module imports: our modules in full, of others the top name as well."""
        if module not in self._imports:
            self._imports[module] = frozenset(self._resolve(module))
        return self._imports[module]

    def _resolve(self, module: str) -> Iterator[str]:
        for node in self.modules[module].imports:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
                continue
            base = self._absolute(module, node)
            ours = base.split(".")[0] in OURS
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield full if not ours or full in self.modules else base
            if not ours:  # the full name matters for numpy.random and the like
                yield base

    def _absolute(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            name = node.module or ""
            return name.removeprefix("feeder.") if name.startswith("feeder.bench.") else name
        parts = module.split(".")
        parents = parts[: len(parts) + self.modules[module].is_package - node.level]
        return ".".join([*parents, *filter(None, [node.module])])

    def chains(self, module: str) -> Iterator[tuple[str, ...]]:
        """Yield the import chain from a module to each module that importing it loads."""
        waiting: deque[tuple[str, ...]] = deque([(module,)])
        seen = {module}
        while waiting:
            chain = waiting.popleft()
            for imported in self._loads(chain[-1]):
                yield (*chain, imported)
                if imported in self.modules and imported not in seen:
                    seen.add(imported)
                    waiting.append((*chain, imported))

    def _loads(self, module: str) -> list[str]:
        parts = module.split(".")
        above = {".".join(parts[:count]) for count in range(1, len(parts))}
        return sorted(self.imports(module) | above)

    def problems(self) -> Iterator[str]:
        """Yield a line for each import, folder and row that breaks the table."""
        rooms = {self.room(module) for module in self.modules}
        yield from (f"{room}: no row in the table" for room in sorted(rooms - {*TABLE}))
        yield from (f"{room}: a row without modules" for room in sorted({*TABLE} - rooms))
        for name, module in self.modules.items():
            own = TABLE.get(self.room(name))
            if own is not None:
                yield from self._wrong_imports(name, own)
                if own.is_pure:
                    for chain in self.chains(name):
                        if not self._is_pure(chain[-1]):
                            yield f"pure: {' → '.join(chain)}"
                    yield from (f"pure: {name} uses {used}" for used in module.impure_names)
        dynamic = {name for name, module in self.modules.items() if module.imports_dynamically}
        yield from (f"{module}: dynamic import" for module in sorted(dynamic - DYNAMIC_IMPORTS))
        yield from (f"{module}: no dynamic import" for module in DYNAMIC_IMPORTS - dynamic)

    def _wrong_imports(self, module: str, own: Row) -> Iterator[str]:
        foreign = {name.split(".")[0] for name in self.imports(module)} - KNOWN
        for imported in self.imports(module):
            top = imported.split(".")[0]
            if top in OURS and imported not in self.modules:
                yield f"{module}: {imported} does not exist"
            elif top in OURS:
                room = self.room(imported)
                if room != self.room(module) and room not in own.rooms:
                    yield f"{module}: imports {imported}, which is in {room}"
            elif top == "tests" or (own.packages is not None and top in foreign - own.packages):
                yield f"{module}: imports {imported}"

    def _is_pure(self, imported: str) -> bool:
        if imported in self.modules:
            return True
        if imported in ("importlib", "importlib.import_module"):
            return True  # the modules that may use it are in DYNAMIC_IMPORTS
        top, *below = imported.split(".")
        return top in PURE and not (top == "numpy" and {*below[:1]} & IMPURE_NUMPY)


@pytest.fixture(scope="module")
def house() -> House:
    return House(read_texts())


def test_modules_keep_to_the_table(house: House) -> None:
    assert [*house.problems()] == []


def test_the_table_has_no_cycles() -> None:
    done: set[str] = set()
    while ready := {name for name, own in TABLE.items() if own.rooms <= done} - done:
        done |= ready
    assert {*TABLE} - done == set()


@pytest.mark.parametrize(
    ("face", "allowed"),
    [
        ("feeder.client", {"numpy", "msgspec", "zmq"}),
        ("trainer_client", {"numpy", "msgspec", "zmq", "torch", "tqdm"}),
        ("trainer_client.reference", {"numpy", "msgspec", "zmq", "torch", "tqdm", *TRAIN_EXTRA}),
    ],
)
def test_clients_reach_no_library_of_the_daemon(house: House, face: str, allowed: set[str]) -> None:
    job = ("trainer_client.reference.", "trainer_client.train.", "trainer_client.evaluate.")
    modules = [module for module in house.modules if f"{module}.".startswith(f"{face}.")]
    if face == "trainer_client":
        modules = [module for module in modules if not f"{module}.".startswith(job)]
    assert len(modules) > 15
    reached = {chain[-1] for module in modules for chain in house.chains(module)}
    assert {name.split(".")[0] for name in reached} & THIRD_PARTY == allowed
    assert "feeder.jpeg._native" not in reached


def test_folders_are_small_and_test_folders_mirror_the_product() -> None:
    folders = Counter(
        path.parent for top in (*OURS, "tests") for path in (ROOT / top).rglob("*.py")
    )
    assert {folder: count for folder, count in folders.items() if count > MODULES_MAX} == {}
    packages = {str(folder.relative_to(ROOT)).removeprefix("feeder/") for folder in folders}
    for folder in folders:
        below = folder.relative_to(ROOT)
        if below.parts[0] == "tests" and len(below.parts) > 1:
            assert str(below.relative_to("tests")) in packages | TEST_ONLY_FOLDERS


def test_each_package_docstring_lists_its_allowed_imports(house: House) -> None:
    for module in (name for name, module in house.modules.items() if module.is_package):
        tree = ast.parse(read_texts()[house.modules[module].path])
        text = ast.get_docstring(tree)
        assert text is not None, module
        if module not in ("feeder", "trainer_client"):  # these define the version and public names
            assert len(tree.body) == 1, f"{module}: more than a docstring"
        listed = " ".join(text.partition("May import: ")[2].split()).removesuffix(".").split(", ")
        own = {name for name in TABLE if f"{name}.".startswith(f"{house.room(module)}.")}
        rooms = TABLE[house.room(module)].rooms - own - {"feeder"}
        product = {*PRODUCT.split()} - {"feeder"}
        if rooms >= product:
            rooms = rooms - product | {"the product"}
        assert {*listed} == (rooms - PARTS or {"nothing"}), module
    for path in (ROOT / "tests").rglob("__init__.py"):
        text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        assert text.endswith("May import: the product, bench, tests."), path


PLANTED: Mapping[str, tuple[dict[str, str], set[str]]] = {
    "a room above": (
        {"feeder/plan/crop.py": "from feeder.wire import zap"},
        {"feeder.plan.crop: imports feeder.wire.zap, which is in wire"},
    ),
    "packages, and tests": (
        {"feeder/client/stats.py": "import torch, cv2\nimport tests.support.jpegs"},
        {f"feeder.client.stats: imports {name}" for name in words("torch cv2 tests.support.jpegs")},
    ),
    "a module that is gone, and a relative import in a function": (
        {
            "feeder/client/stats.py": "from feeder.gone import it",
            "feeder/client/transport.py": "def late():\n    from ..jpeg import decode",
        },
        {
            "feeder.client.stats: feeder.gone does not exist",
            "feeder.client.transport: imports feeder.jpeg.decode, which is in jpeg",
        },
    ),
    "dynamic imports": (
        {
            "feeder/dataset/opened.py": "import importlib\nimportlib.import_module('zmq')",
            "feeder/node/router.py": "from importlib import import_module as load\nload('zmq')",
            "bench/report.py": "__import__('zmq')",
        },
        {
            f"{name}: dynamic import"
            for name in ("feeder.dataset.opened", "feeder.node.router", "bench.report")
        },
    ),
    "a new folder": ({"feeder/attic/box.py": "import zmq"}, {"attic: no row in the table"}),
    "a socket that a pure module reaches": (
        {
            "feeder/client/core/links.py": "from feeder.plan import first",
            "feeder/plan/first.py": "from .second import value",
            "feeder/plan/second.py": "if True:\n    from socket import socket",
        },
        {
            "pure: feeder.client.core.links → feeder.plan.first → feeder.plan.second → socket",
            "pure: feeder.plan.first → feeder.plan.second → socket",
            "pure: feeder.plan.second → socket",
        },
    ),
    "a package above a pure module": (
        {"feeder/client/__init__.py": "import threading"},
        {"pure: feeder.client.core.links → feeder.client → threading"},
    ),
}
"""Lines added to modules, or to new ones, and the problems that must be found."""


def plant(lines: Mapping[str, str]) -> House:
    texts = read_texts()
    return House({**texts, **{path: f"{texts.get(path, '')}\n{lines[path]}\n" for path in lines}})


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_import_is_found(name: str) -> None:
    lines, problems = PLANTED[name]
    found = {*plant(lines).problems()}
    assert problems <= found
    below = ("pure: ", *(f"{problem.split(':')[0]}: " for problem in problems))
    assert all(problem.startswith(below) for problem in found), "nothing else is blamed"


def test_impure_names_in_a_pure_module_are_found() -> None:
    lines = [
        "import numpy, numpy as other\nfrom numpy import fromfile, random",
        *(f"numpy.{name}" for name in IMPURE_NUMPY),
        "def late():\n    other.memmap('x')",
        *(f"{name}('x')" for name in IMPURE_CALLS),
    ]
    house = plant({"feeder/plan/crop.py": "\n".join(lines)})
    own = "pure: feeder.plan.crop"
    assert Counter(line for line in house.problems() if line.startswith(own)) == Counter(
        [
            *(f"{own} uses numpy.{name}" for name in (*IMPURE_NUMPY, "memmap")),
            *(f"{own} uses {name}()" for name in IMPURE_CALLS),
            *(f"{own} → numpy.{name}" for name in ("fromfile", "random")),
        ]
    )


def test_rows_and_exceptions_that_are_no_longer_needed_are_found() -> None:
    path = "feeder/pack/task_pool.py"
    text = read_texts()[path].replace("import_module", "reload")
    house = House({**read_texts(), path: text})
    assert [*house.problems()] == ["feeder.pack.task_pool: no dynamic import"]
    texts = {**read_texts()}
    texts["feeder/sample/plan.py"] = texts.pop("feeder/sample/cache_plan.py")
    assert "sample.cache_plan: a row without modules" in [*House(texts).problems()]


def test_tests_import_no_package_of_an_extra_at_their_top() -> None:
    """Plain pytest after `make setup`, which installs none of them, skips what needs one."""
    extras = re.compile(r"(?m)^(?:import|from) (?:botocore|lmdb|obstore|pyarrow|zstandard|scipy)\b")
    modules = [p for p in (ROOT / "tests").rglob("*.py") if p.parent.name != "golden"]
    assert [str(p) for p in modules if extras.search(p.read_text("utf-8"))] == []
