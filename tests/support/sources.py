"""Small source folders for the packing tests, and ways to pack them."""

import contextlib
import io
import json
import os
import subprocess
import sys
import unittest.mock
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import pytest
from PIL import Image

from feeder.cli.main import main
from feeder.pack.options import PackOptions
from feeder.pack.progress import ProgressLine
from feeder.pack.run import PackSummary, pack_dataset
from feeder.pack.task_pool import Message, Messages, RunTasks, perform_here, raise_error
from tests.support.jpegs import picture

REPOSITORY = Path(__file__).resolve().parents[2]


def image(width: int = 40, height: int = 30, seed: int = 0) -> Image.Image:
    """Return an RGB picture with content that exposes errors."""
    return Image.fromarray(picture(width, height, seed))


def encoded(picture: Image.Image, format_name: str = "JPEG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format_name, **options)
    return buffer.getvalue()


def make_source(root: Path, images: int, classes: int = 3, side: int = 40) -> Path:
    """Write ``images`` different small JPEGs in ``classes`` folders; return root."""
    for number in range(images):
        folder = root / f"class{number % classes}"
        folder.mkdir(parents=True, exist_ok=True)
        picture = image(side + number % 7, side - 5 + number % 3, seed=number)
        (folder / f"image{number:03d}.jpg").write_bytes(encoded(picture, quality=80))
    return root


def run_here(
    module: str, setup: msgspec.Struct, tasks: Iterable[msgspec.Struct], *, jobs: int
) -> Messages:
    """Replaces ``run_tasks``: performs each task synchronously in this process."""
    for task in tasks:
        messages: list[Message] = []
        perform_here(module, _through_json(setup), _through_json(task), messages.append)
        for message in messages:
            if message["kind"] == "error":
                raise_error(message)
            yield _through_json(message)


def run_inline(monkeypatch: pytest.MonkeyPatch, *modules: str, run: RunTasks = run_here) -> None:
    """Let these modules of ``feeder`` ("pack.run") perform their tasks in this process."""
    for module in modules:
        monkeypatch.setattr(f"feeder.{module}.run_tasks", run)


def _through_json(message: Any) -> Any:
    return json.loads(json.dumps(msgspec.to_builtins(message)))


def silent() -> ProgressLine:
    return ProgressLine(io.StringIO())


def pack(source: str | Path, destination: Path, **options: Any) -> PackSummary:
    """Pack with ``options`` of PackOptions; any number of files may be bad."""
    options.setdefault("max_bad", "100%")
    return pack_dataset(source, destination, PackOptions(**options), silent())


def feeder_command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "feeder", *map(str, arguments)]


def run_feeder(
    *arguments: str | Path, prefix: Iterable[str] = ()
) -> "subprocess.CompletedProcess[str]":
    """Run the real CLI through the command ``prefix``; return status, stdout, stderr as text.

    It takes half a second; ``call_feeder`` lists what needs it.
    """
    return subprocess.run(
        [*prefix, *feeder_command(*arguments)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=120,
        check=False,
    )


def call_feeder(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """As ``run_feeder``, but calls ``feeder.cli.main`` in this process; a bug raises here.

    For tests of arguments, texts and results. What must stay a process, and so ``run_feeder`` or
    ``Daemon``:

        exit status    that of the real program, once a command
        signals        how they end a command, and what they leave; ``serve`` keeps its handlers
        streams        closed, full, non-blocking or a terminal; what children write to them
        descriptors    how many, their limits, and which are inherited
        import cost    what a command imports, other libraries, other variables of Python
    """
    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
        for _ in range(2)  # streams as those of feeder.process.program
    )
    with (
        contextlib.chdir(REPOSITORY),
        unittest.mock.patch.dict(os.environ),  # put back afterwards
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            status = main([*map(str, arguments)])
        except SystemExit as end:  # argparse's
            status = int(end.code or 0)
    texts = []
    for stream in (out, err):
        stream.seek(0)
        texts.append(stream.read())
    return subprocess.CompletedProcess(feeder_command(*arguments), status, *texts)


def error_line(result: "subprocess.CompletedProcess[str]") -> str:
    """Return the error line of a failed command; check that there is one only, and no traceback."""
    lines = [line for line in result.stderr.splitlines() if line.startswith("feeder: error: ")]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    return lines[0]


def file_tree(root: Path) -> dict[str, bytes]:
    """Return the content of all files below ``root``, by relative path."""
    return {
        os.path.relpath(path, root): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def pixels(data: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the RGB pixels (height, width, 3) of an image file."""
    with Image.open(io.BytesIO(data)) as opened:
        return np.asarray(opened.convert("RGB"))


def write_lmdb(
    file: Path, values: Mapping[bytes, bytes], *, database: bytes | None = None, **options: Any
) -> Path:
    """Write a database in a file of its own; skips the test where the package is missing."""
    lmdb = pytest.importorskip("lmdb", reason="make test installs lmdb")
    with lmdb.open(
        str(file), subdir=False, map_size=1 << 26, lock=False, max_dbs=1, **options
    ) as environment:
        chosen = None if database is None else environment.open_db(database)
        with environment.begin(write=True, db=chosen) as transaction:
            for key, value in values.items():
                transaction.put(key, value)
    return file


def write_parquet(file: Path | BinaryIO, columns: Mapping[str, Any], **options: Any) -> None:
    """Write a table; skips the test where pyarrow is missing."""
    pa = pytest.importorskip("pyarrow", reason="make test installs pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    metadata = options.pop("metadata", None)
    pq.write_table(pa.table(columns, metadata=metadata), file, **options)
