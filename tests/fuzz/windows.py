"""Damaged blobs decoded by a sanitized C program: thousands a second, with every version.

    python -m tests.fuzz.windows                    two million blobs
    python -m tests.fuzz.windows --inputs 100000
    python -m tests.fuzz.windows --first N --inputs 1      reproduce one

``native/windows.c`` says what must hold for each. Every second span of seeds runs with the vectors
that are plain C, which other CPUs use; the sample's images are packed with these, too. The target
``decode-window`` does the same through the binding, for fewer. The exit status is 1 if there are
findings.
"""

import argparse
import importlib.util
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from feeder.jpeg import _native
from feeder.jpeg.recode import TILE_WIDTHS_PX, TiledJpeg, tile_jpeg
from tests.fuzz.pictures import tiled_jpegs
from tests.fuzz.sanitized import OPTIONS, REPOSITORY, build_program
from tests.support.hard_jpegs import KINDS, hard_jpeg
from tests.support.jpegs import class_files

_INPUTS = 2_000_000
_SAMPLE = REPOSITORY.parent / "shared" / "data" / "imagenet-sample"
_SPAN_INPUTS = 50_000
_SIZES = ((1, 1), (3, 70), (9, 8), (17, 300), (33, 17), (64, 32), (90, 75), (200, 21), (140, 150))
_NAMES = "blob block_rows encode_avx2 encode_portable pixels_avx2 pixels_avx512"
_NAMES += " pixels_portable plane_rows scratch tile tile_avx2 tile_avx2_no_pdep tile_avx512"
_NAMES += " tile_avx512vbmi tile_portable tile_reader versions window window_plan"
_DRIVER = "tests/fuzz/native"
_SOURCES = [f"feeder/jpeg/native/{name}.c" for name in _NAMES.split()]
_SOURCES += [f"{_DRIVER}/{name}.c" for name in ("damage", "windows")]
_HEADERS = [f"{_DRIVER}/damage.h"]
_KINDS = [kind for kind in KINDS if kind not in ("4:4:0", "4:1:1", "rgb")]  # for TurboJPEG
_ENTRY = struct.Struct("<I")
_FINDINGS_MAX = 5


def build(*macros: str) -> Path:
    """Return the sanitized program."""
    return build_program("windows", _SOURCES, _HEADERS, *macros)


def write_corpus(path: Path) -> None:
    """Write the blobs to damage: every kind, content and size, mostly small."""
    with path.open("wb") as file:
        for tiled in (*tiled_jpegs(), *_hard_blobs()):
            file.write(_ENTRY.pack(len(tiled.blob)) + tiled.blob)


def _hard_blobs() -> list[TiledJpeg]:
    made: list[TiledJpeg] = []
    for number, (width, height) in enumerate(_SIZES):
        for kind in _KINDS:
            for quality in (4, 60, 100):
                jpeg = hard_jpeg(len(made), kind, width, height, quality)
                tile_width_px = TILE_WIDTHS_PX[(number + len(made)) % len(TILE_WIDTHS_PX)]
                made.append(tile_jpeg(jpeg, tile_width_px))
    return made


def count_packed_otherwise(images: Path) -> int:
    """Return how many of the images the portable encoder packs otherwise if it is plain C."""
    setup = [sys.executable, "-c", "from setuptools import setup; setup()", "build_ext"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [*setup, "--build-lib", folder, "--build-temp", f"{folder}/objects"],
            cwd=REPOSITORY,
            env=os.environ | {"CFLAGS": "-DPLAIN_C"},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        (path,) = Path(folder, "feeder", "jpeg").iterdir()
        spec = importlib.util.spec_from_file_location("feeder.jpeg._native", path)
        assert spec is not None
        plain = importlib.util.module_from_spec(spec)
    sources = [path.read_bytes() for path in class_files(images)]
    if not sources:
        raise RuntimeError(f"{images} has no images")
    return sum(plain.tile_jpeg(s, 64, True) != _native.tile_jpeg(s, 64, True) for s in sources)


def run(program: Path, corpus: Path, first: int, count: int, planted: str = "") -> str:
    """Return the program's output on seeds; "FOUND at seed N" is in it where it ended early."""
    command = [str(program), str(corpus), str(first), str(count), *([planted] if planted else [])]
    done = subprocess.run(
        command, env=os.environ | OPTIONS, capture_output=True, text=True, check=False
    )
    if (done.returncode == 0) == ("FOUND" in done.stderr):
        raise RuntimeError(f"the program did not run: {done.returncode}: {done.stderr}")
    return done.stdout + done.stderr


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.windows", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--inputs", type=int, default=_INPUTS)
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--images", type=Path, default=_SAMPLE, help="class folders of JPEGs")
    options = parser.parse_args()
    programs = build(), build("PLAIN_C")
    corpus = programs[0].with_name("corpus")
    write_corpus(corpus)
    for planted, what in (("read", "heap-buffer-overflow"), ("write", "SEGV")):
        if what not in run(programs[0], corpus, 0, 1000, planted):
            raise RuntimeError(f"the sanitizers do not find a planted {planted}")
    differing = count_packed_otherwise(options.images)
    _log(f"{differing} images of {options.images} are packed otherwise in plain C")
    began_s, totals, findings = time.monotonic(), Counter[tuple[str, int]](), int(differing > 0)
    first, end = options.first, options.first + options.inputs
    while first < end and findings < _FINDINGS_MAX:
        span, done = divmod(first, _SPAN_INPUTS)
        count = min(_SPAN_INPUTS - done, end - first)
        output = run(programs[span % 2], corpus, first, count)
        found = re.search(r"FOUND at seed (\d+)", output)
        if found:
            findings += 1
            _log(f"{output}\nreproduce: python -m tests.fuzz.windows --inputs 1 --first {found[1]}")
            first = int(found[1]) + 1
            continue
        first += count
        for line in output.splitlines()[1:]:
            label, *numbers = re.split(r"  +|: ", line)
            for column, number in enumerate(numbers):
                totals[label, column] += int(number)
        _log(f"{first - options.first:,} blobs, {time.monotonic() - began_s:.0f} s")
    _log(format_totals(totals))
    _log(f"{findings} findings")
    return int(findings > 0)


def format_totals(totals: Counter[tuple[str, int]]) -> str:
    """Return a row for each scale and what was not decoded at all."""
    lines = [f"{'scale':24}{'decoded':>12}{'left to TurboJPEG':>20}{'refused':>12}"]
    for label in dict.fromkeys(label for label, _ in totals):
        numbers = [totals[label, column] for column in range(3)]
        if label.startswith("1/"):
            lines.append(f"{label:24}{numbers[0]:>12,}{numbers[1]:>20,}{numbers[2]:>12,}")
        else:
            lines.append(f"{label}: {numbers[0]:,}")
    return "\n".join([*lines, f"all: {sum(totals.values()):,}"])


def _log(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
