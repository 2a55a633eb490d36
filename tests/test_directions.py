"""Import rules: every import of every module, direct and transitive, against one table.

A *room* is a folder of ``feeder``, ``trainer_client`` or ``bench``, or a module with a row of its
own in the table. Modules are listed from the disk: a folder without a row is a problem, and so is a
row without modules. Imports count wherever they stand, in functions and for type checkers too; and
importing a module runs the ``__init__`` of each package above it.
"""

import ast
import functools
import shutil
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = ("feeder", "trainer_client", "bench")
MODULES_MAX = 25  # in a folder

PURE = {
    *(
        "__future__",
        "abc",
        "bisect",
        "collections",
        "contextlib",
        "dataclasses",
        "decimal",
        "difflib",
        "enum",
    ),
    *("errno", "functools", "hashlib", "itertools", "json", "math", "operator", "re", "reprlib"),
    *("statistics", "struct", "sys", "types", "typing", "numpy", "msgspec"),
}
"""All that pure rooms reach besides ours: no clock, file, thread, socket or process."""

IMPURE_NUMPY = {
    *("random", "memmap", "load", "save", "savez", "savez_compressed", "fromfile", "fromregex"),
    *("loadtxt", "savetxt", "genfromtxt"),
}
"""Names of numpy that pure modules may not use: hidden state and files."""

IMPURE_CALLS = {"hash", "open", "input", "exec", "eval"}
"""Built-in functions that pure modules may not call; hash() of text differs between processes."""

DYNAMIC_IMPORTS = {
    *("feeder", "trainer_client", "feeder.pack.task_pool", "trainer_client.reference.models"),
}
"""Modules that import by name at run time, which the table cannot check.

They are faces, task_pool, and the models, which import timm where it is installed.

``feeder`` imports what packs at the first use of ``feeder.pack_samples``, so ``import feeder``
imports nothing. Types come from its stub, ``__init__.pyi``, which no import runs.
"""

THIRD_PARTY = {
    *("PIL", "altair", "google_crc32c", "mlperf_logging", "msgspec", "numpy", "prometheus_client"),
    *("psutil", "tensorboardX", "wandb"),
    *(
        "pyarrow",
        "ray",
        "rich",
        "scipy",
        "torch",
        "tqdm",
        "turbojpeg",
        "vl_convert",
        "xxhash",
        "zmq",
        "zstandard",
    ),
}

TRAIN_EXTRA = {"altair", "mlperf_logging", "tensorboardX", "vl_convert", "wandb"}
"""What the reference job reports with, where it is installed."""


@dataclass(frozen=True, slots=True)
class Row:
    """What a room may import: our rooms and third-party packages (None: any)."""

    rooms: frozenset[str]
    packages: frozenset[str] | None = None
    is_pure: bool = False


def row(rooms: str = "", packages: str | None = None, *, pure: bool = False) -> Row:
    named = None if packages is None else frozenset(packages.split())
    return Row(frozenset(rooms.split()), named, pure)


BASE = "feeder errors metrics remedies plan wire process"
DECODING = f"{BASE} host jpeg jpeg.crop_decode dataset sample sample.cache_plan"
PRODUCT = (
    f"{DECODING} installation security session client client.core source convert survey pack "
    "pack_cache worker node diagnosis monitoring doctor doctor.findings daemon screens cluster "
    "cluster.policy cli trainer_client "
    "trainer_client.train trainer_client.evaluate trainer_client.reference "
    "trainer_client.reference.recipes trainer_client.reference.checkpoints "
    "trainer_client.reference.optimisers trainer_client.reference.parallel "
    "trainer_client.reference.tracking"
)

# Rooms of ``feeder`` are named without that prefix; "feeder" itself holds the version.
TABLE: Mapping[str, Row] = {
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
    "security": row("errors wire process", "zmq"),
    "client.core": row("errors metrics plan wire", "numpy msgspec", pure=True),
    "client": row("errors metrics plan wire process security client.core", "numpy msgspec zmq"),
    "jpeg": row("feeder errors installation plan", "numpy PIL turbojpeg"),
    "jpeg.crop_decode": row("jpeg", "numpy", pure=True),
    "dataset": row("errors plan process jpeg", "numpy msgspec xxhash"),
    "sample.cache_plan": row("", "msgspec", pure=True),
    "sample": row(
        "errors plan jpeg jpeg.crop_decode dataset sample.cache_plan", "numpy msgspec PIL"
    ),
    "source.location.splits": row("", "", pure=True),
    "source.label_files": row("errors plan process source.location.splits", "numpy xxhash"),
    "source.location": row("errors process source.label_files source.location.splits", ""),
    "source": row(
        "errors plan process source.label_files source.location source.location.splits",
        "google_crc32c numpy msgspec pyarrow scipy xxhash zstandard",
    ),
    "convert": row("errors plan process jpeg dataset source", "numpy PIL turbojpeg"),
    "survey": row("errors plan process jpeg jpeg.crop_decode dataset", "numpy xxhash PIL"),
    "pack": row(
        "errors plan process host jpeg jpeg.crop_decode dataset source source.label_files convert "
        "survey",
        "numpy msgspec xxhash PIL turbojpeg",
    ),
    "pack_cache": row(
        "errors process dataset source source.location.splits pack", "msgspec xxhash"
    ),
    "worker": row(
        "errors plan wire process jpeg dataset sample sample.cache_plan", "numpy msgspec"
    ),
    "node": row(f"{DECODING} security session worker", "numpy msgspec zmq"),
    "monitoring": row("errors metrics process diagnosis", "prometheus_client"),
    "doctor.findings": row("", "", pure=True),
    "doctor": row("errors installation process host jpeg security sample doctor.findings", "zmq"),
    "daemon": row(f"{DECODING} session worker node diagnosis monitoring doctor", "msgspec"),
    "cli": row(
        f"{DECODING} security client client.core survey pack pack_cache diagnosis doctor "
        "doctor.findings daemon screens cluster",
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
    "trainer_client.reference.recipes": row("errors plan", ""),
    "trainer_client.reference.optimisers": row("errors", "torch"),
    "trainer_client.reference.parallel": row("errors", "torch"),
    "trainer_client.reference.results": row("", ""),
    "trainer_client.reference.checkpoints": row(
        "errors process trainer_client.reference.results", "torch"
    ),
    "trainer_client.reference.tracking": row(
        "errors installation process trainer_client.reference.results",
        "altair mlperf_logging tensorboardX vl_convert wandb",
    ),
    "trainer_client.reference": row(
        "feeder errors installation plan process trainer_client trainer_client.reference.recipes "
        "trainer_client.reference.optimisers trainer_client.reference.parallel "
        "trainer_client.reference.results trainer_client.reference.checkpoints "
        "trainer_client.reference.tracking",
        "msgspec numpy torch",
    ),
    "trainer_client.train": row(
        "process trainer_client.reference trainer_client.reference.recipes "
        "trainer_client.reference.results",
        "",
    ),
    "trainer_client.evaluate": row("process trainer_client.reference", ""),
    "bench": row(PRODUCT),
    "bench.data": row(f"{PRODUCT} bench"),
    "bench.micro": row(f"{PRODUCT} bench bench.data"),
    "bench.stream": row(f"{PRODUCT} bench bench.data"),
    "bench.soak": row(f"{PRODUCT} bench bench.data"),
    "bench.chaos": row(f"{PRODUCT} bench bench.data"),
    "bench.cluster": row(f"{PRODUCT} bench bench.data"),
    "bench.rivals": row(f"{PRODUCT} bench bench.data"),
    "bench.rivals.scripts": row(f"{PRODUCT} bench"),
    "bench.pack": row(f"{PRODUCT} bench bench.data bench.rivals"),
    "bench.demo": row(f"{PRODUCT} bench bench.data"),
    "bench.gpu": row(f"{PRODUCT} bench bench.data"),
    "bench.plots": row(
        "errors process bench bench.cluster bench.micro bench.rivals bench.soak bench.stream"
    ),
    "bench.cli": row(
        "process bench bench.chaos bench.cluster bench.data bench.gpu bench.micro bench.pack "
        "bench.plots bench.rivals bench.soak bench.stream"
    ),
    "bench.__main__": row("process bench.cli"),
}

KNOWN = {*sys.stdlib_module_names, "_typeshed", *OURS}  # all else is third-party
PARTS = {"jpeg.crop_decode", "sample.cache_plan", "source.location.splits"}
"""Pure modules in impure rooms."""
TEST_ONLY_FOLDERS = {
    *("support", "exact", "faults", "fuzz", "numa", "ui", "smoke", "slurm", "kubernetes"),
    *("frameworks", "frameworks/recording", "frameworks/scripts", "source/golden"),
}


# By text, as most modules of planted houses are those of the project.
@functools.cache
def parse(text: str) -> ast.Module:
    return ast.parse(text)


@functools.cache
def find_imports(text: str) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Return the import statements of a module, wherever they stand."""
    nodes = ast.walk(parse(text))
    return tuple(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))


@functools.cache
def find_impure_names(text: str) -> tuple[str, ...]:
    """Return the impure names that a module uses: of numpy, whatever its alias, and built-in."""
    aliases = {
        alias.asname or alias.name
        for node in find_imports(text)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "numpy"
    }
    found: list[str] = []
    for node in ast.walk(parse(text)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in aliases:
            found += [f"numpy.{name}" for name in {node.attr} & IMPURE_NUMPY]
        if isinstance(node, ast.Call) and ast.unparse(node.func) in IMPURE_CALLS:
            found.append(f"{ast.unparse(node.func)}()")
    return tuple(found)


@functools.cache
def imports_dynamically(text: str) -> bool:
    """Return whether a module uses a function that imports by name."""
    dynamic = {"import_module", "__import__"}
    return any(
        (isinstance(node, ast.Name) and node.id in dynamic)
        or (isinstance(node, ast.Attribute) and node.attr in dynamic)
        or (isinstance(node, ast.alias) and node.name in dynamic)
        for node in ast.walk(parse(text))
    )


class House:
    """All modules below a folder, and what they import."""

    def __init__(self, root: Path, table: Mapping[str, Row] = TABLE) -> None:
        self.table = table
        self.paths: dict[str, Path] = {}
        for top in OURS:
            for path in sorted((root / top).rglob("*.py*"), reverse=True):
                if path.suffix in {".py", ".pyi"}:  # where both exist, the .py comes last and wins
                    parts = path.relative_to(root).with_suffix("").parts
                    self.paths[".".join(parts).removesuffix(".__init__")] = path

    def room(self, module: str) -> str:
        """Return a module's room, which the table may lack."""
        name = module.removeprefix("feeder.")
        if name in self.table or self.paths[module].stem == "__init__":
            return name
        return module.rpartition(".")[0].removeprefix("feeder.")

    @functools.cache  # noqa: B019 -- a House lives no longer than its test
    def imports(self, module: str) -> frozenset[str]:
        """Return what a module imports: our modules in full, of others the top name as well."""
        found: set[str] = set()
        for node in find_imports(self._text(module)):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            else:
                base = self._absolute(module, node)
                full = {f"{base}.{alias.name}" for alias in node.names}
                if base.split(".")[0] in OURS:
                    found |= {name if name in self.paths else base for name in full}
                else:  # the full name matters for numpy.random and the like
                    found |= {base, *full}
        return frozenset(found)

    def _absolute(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            name = node.module or ""
            return name.removeprefix("feeder.") if name.startswith("feeder.bench.") else name
        parts = module.split(".")
        is_package = self.paths[module].stem == "__init__"
        parents = parts[: len(parts) + is_package - node.level]
        return ".".join([*parents, *filter(None, [node.module])])

    def chains(self, module: str) -> Iterator[tuple[str, ...]]:
        """Yield the import chain from a module to each module that importing it loads."""
        waiting: deque[tuple[str, ...]] = deque([(module,)])
        seen = {module}
        while waiting:
            chain = waiting.popleft()
            parts = chain[-1].split(".")
            above = {".".join(parts[:count]) for count in range(1, len(parts))}
            for imported in sorted(self.imports(chain[-1]) | above):
                yield (*chain, imported)
                if imported in self.paths and imported not in seen:
                    seen.add(imported)
                    waiting.append((*chain, imported))

    def problems(self) -> Iterator[str]:
        """Yield a line for each import, folder and row that breaks the table."""
        rooms = {self.room(module) for module in self.paths}
        yield from (f"{room}: no row in the table" for room in sorted(rooms - {*self.table}))
        yield from (f"{room}: a row without modules" for room in sorted({*self.table} - rooms))
        for module in self.paths:
            own = self.table.get(self.room(module))
            if own is not None:
                yield from self._wrong_imports(module, own)
                if own.is_pure:
                    for chain in self.chains(module):
                        if not self._is_pure(chain[-1]):
                            yield f"pure: {' → '.join(chain)}"
                    for name in find_impure_names(self._text(module)):
                        yield f"pure: {module} uses {name}"
        dynamic = {module for module in self.paths if imports_dynamically(self._text(module))}
        yield from (f"{module}: dynamic import" for module in sorted(dynamic - DYNAMIC_IMPORTS))
        yield from (f"{module}: no dynamic import" for module in DYNAMIC_IMPORTS - dynamic)

    def _wrong_imports(self, module: str, own: Row) -> Iterator[str]:
        foreign = {name.split(".")[0] for name in self.imports(module)} - KNOWN
        for imported in self.imports(module):
            top = imported.split(".")[0]
            if top in OURS and imported not in self.paths:
                yield f"{module}: {imported} does not exist"
            elif top in OURS:
                room = self.room(imported)
                if room != self.room(module) and room not in own.rooms:
                    yield f"{module}: imports {imported}, which is in {room}"
            elif top == "tests" or (own.packages is not None and top in foreign - own.packages):
                yield f"{module}: imports {imported}"

    def _is_pure(self, imported: str) -> bool:
        if imported in self.paths:
            return True
        if imported in ("importlib", "importlib.import_module"):
            return True  # the modules that may use it are in DYNAMIC_IMPORTS
        top, *below = imported.split(".")
        return top in PURE and not (top == "numpy" and {*below[:1]} & IMPURE_NUMPY)

    def _text(self, module: str) -> str:
        return self.paths[module].read_text("utf-8")


@pytest.fixture(scope="module")
def house() -> House:
    return House(ROOT)


def test_modules_keep_to_the_table(house: House) -> None:
    assert [*house.problems()] == []


def test_the_table_has_no_cycles() -> None:
    done: set[str] = set()
    while ready := {name for name, each in TABLE.items() if each.rooms <= done} - done:
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
    modules = [module for module in house.paths if f"{module}.".startswith(f"{face}.")]
    if face == "trainer_client":
        modules = [module for module in modules if not f"{module}.".startswith(job)]
    assert len(modules) > 15
    reached = {chain[-1].split(".")[0] for module in modules for chain in house.chains(module)}
    assert reached & THIRD_PARTY == allowed
    decoder = "feeder.jpeg._native"
    assert all(chain[-1] != decoder for module in modules for chain in house.chains(module))


def test_each_change_of_the_prefetch_is_made_by_the_one_module_whose_decision_it_is(
    house: House,
) -> None:
    core = "feeder.client.core"
    changes = {
        "begin": f"{core}.session",
        "take": f"{core}.session",
        "return_buffer": "feeder.client.transport",
        "extend": f"{core}.session",
        "find_placement": f"{core}.session",
        "stored": f"{core}.session",
        "lend": f"{core}.session",
        "failed": f"{core}.session",
        "record_request": f"{core}.requests",
        "reclaim": f"{core}.requests",
        "give_up": f"{core}.requests",
        "forget": f"{core}.node_link",
        "reopen_lost": f"{core}.node_link",
    }
    called = Counter(
        (module, node.func.attr)
        for module, path in house.paths.items()
        for node in ast.walk(parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value).endswith("prefetch")
    )
    ours = {(name, module) for module, name in called if name in changes}
    assert {pair for pair in ours if not pair[1].startswith("bench")} == changes.items()


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
    for module, path in house.paths.items():
        if path.stem != "__init__":
            continue
        tree = parse(path.read_text("utf-8"))
        text = ast.get_docstring(tree)
        assert text is not None, module
        if module not in {
            "feeder",
            "trainer_client",
        }:  # these define the version and the public names
            assert len(tree.body) == 1, f"{module}: more than a docstring"
        listed = " ".join(text.partition("May import: ")[2].split()).removesuffix(".").split(", ")
        own = {name for name in TABLE if f"{name}.".startswith(f"{house.room(module)}.")}
        rooms = TABLE[house.room(module)].rooms - own - {"feeder"}
        product = {*PRODUCT.split()} - {"feeder"}
        if rooms >= product:
            rooms = rooms - product | {"the product"}
        assert {*listed} == (rooms - PARTS or {"nothing"}), module
    for path in (ROOT / "tests").rglob("__init__.py"):
        text = ast.get_docstring(parse(path.read_text("utf-8"))) or ""
        assert text.endswith("May import: the product, bench, tests."), path


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A copy of all modules, for planting faults."""
    for module in House(ROOT).paths.values():
        copy = tmp_path / module.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(module, copy)
    assert [*House(tmp_path).problems()] == []
    return tmp_path


def add(path: Path, line: str) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")


@pytest.mark.parametrize(
    ("module", "line", "problem"),
    [
        ("plan.crop", "from feeder.wire import zap", "imports feeder.wire.zap, which is in wire"),
        ("client.stats", "import torch", "imports torch"),
        ("client.stats", "import cv2", "imports cv2"),
        ("client.stats", "import tests.support.jpegs", "imports tests.support.jpegs"),
        ("errors", "from feeder.gone import it", "feeder.gone does not exist"),
        (
            "client.stats",
            "def late():\n    from ..jpeg import decode",
            "imports feeder.jpeg.decode, which is in jpeg",
        ),
    ],
)
def test_a_forbidden_import_is_found(planted: Path, module: str, line: str, problem: str) -> None:
    add(House(planted).paths[f"feeder.{module}"], line)
    assert f"feeder.{module}: {problem}" in [*House(planted).problems()]


def test_impure_names_in_a_pure_module_are_found(planted: Path) -> None:
    crop = planted / "feeder" / "plan" / "crop.py"
    add(crop, "import numpy, numpy as other\nfrom numpy import fromfile, random")
    for name in IMPURE_NUMPY:
        add(crop, f"numpy.{name}")
    add(crop, "def late():\n    other.memmap('x')")
    for name in IMPURE_CALLS:
        add(crop, f"{name}('x')")
    own = "pure: feeder.plan.crop"
    found = [each for each in House(planted).problems() if each.startswith(own)]
    assert Counter(found) == Counter(
        [
            *(f"{own} uses numpy.{name}" for name in (*IMPURE_NUMPY, "memmap")),
            *(f"{own} uses {name}()" for name in IMPURE_CALLS),
            *(f"{own} → numpy.{name}" for name in ("fromfile", "random")),
        ]
    )


def test_dynamic_imports_are_found(planted: Path) -> None:
    lines = {
        "feeder.dataset.opened": "import importlib\nimportlib.import_module('zmq')",
        "feeder.node.router": "from importlib import import_module as load\nload('zmq')",
        "bench.report": "__import__('zmq')",
    }
    for module, line in lines.items():
        add(House(planted).paths[module], line)
    assert {*House(planted).problems()} == {f"{module}: dynamic import" for module in lines}


def test_an_exception_for_a_dynamic_import_that_is_gone_is_found(planted: Path) -> None:
    pool = planted / "feeder" / "pack" / "task_pool.py"
    pool.write_text(pool.read_text("utf-8").replace("import_module", "reload"), "utf-8")
    assert [*House(planted).problems()] == ["feeder.pack.task_pool: no dynamic import"]


def test_a_new_folder_and_a_row_without_one_are_found(planted: Path) -> None:
    add(planted / "feeder" / "attic" / "box.py", "import zmq")
    assert [*House(planted).problems()] == ["attic: no row in the table"]
    shutil.rmtree(planted / "feeder" / "attic")
    (planted / "feeder" / "sample" / "cache_plan.py").rename(planted / "feeder/sample/plan.py")
    assert "sample.cache_plan: a row without modules" in [*House(planted).problems()]


def test_a_socket_imported_transitively_by_a_pure_module_is_found(planted: Path) -> None:
    add(planted / "feeder" / "client" / "core" / "feeders.py", "from feeder.plan import first")
    add(planted / "feeder" / "plan" / "first.py", "from .second import value")
    add(planted / "feeder" / "plan" / "second.py", "if True:\n    from socket import socket")
    way = "feeder.client.core.feeders → feeder.plan.first → feeder.plan.second → socket"
    assert f"pure: {way}" in [*House(planted).problems()]


def test_an_import_in_a_package_above_a_pure_module_is_found(planted: Path) -> None:
    add(planted / "feeder" / "client" / "__init__.py", "import threading")
    way = "feeder.client.core.feeders → feeder.client → threading"
    assert f"pure: {way}" in [*House(planted).problems()]
