"""What packing says of images that are unusual: turned, dark, clipped, or of no format it reads."""

import io
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image

import feeder
from feeder.cli.pack import format_summary
from feeder.dataset.manifest import Manifest, load_manifest
from feeder.errors import ConfigError, DatasetError
from feeder.pack.options import PackOptions
from feeder.pack.progress import ProgressLine
from feeder.pack.run import PackSummary, pack_dataset
from feeder.pack.verify import Verification
from feeder.survey.page import SURVEY_NAME
from tests.support.sources import encoded, image, run_inline, silent

_DARK = "and 65,535 becomes white, so that they are dark"


@pytest.fixture(autouse=True)
def _inline(monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(monkeypatch, "pack.run", "pack.containers", "pack.verify")


def _source(root: Path, files: dict[str, bytes]) -> Path:
    (root / "a").mkdir(parents=True)
    for name, data in {"plain.jpg": encoded(image()), **files}.items():
        (root / "a" / name).write_bytes(data)
    return root


def _turned(orientation: int, name: str = "JPEG") -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image(), name, exif=exif)


def _levels(high: int) -> bytes:
    ramp = np.linspace(0, high, 64 * 8).astype(np.uint16).reshape(8, 64)
    return encoded(Image.fromarray(ramp), "PNG")


def _pack(source: Path, destination: Path, **options: Any) -> tuple[PackSummary, str]:
    """Return the summary, and what went to stderr."""
    shown = io.StringIO()
    options = {"max_bad": "90%", **options}
    summary = pack_dataset(source, destination, PackOptions(**options), ProgressLine(shown))
    return summary, shown.getvalue()


def _problems(path: Path) -> list[str]:
    return list(Verification.open(path, jobs=1, progress=silent()).problems())


def _orientation_lines(path: Path, summary: PackSummary) -> list[str]:
    return [line for line in format_summary(path, summary) if line.startswith("  orientation")]


def test_orientations_that_are_not_applied_have_a_line_with_the_remedy(tmp_path: Path) -> None:
    one = _source(tmp_path / "one", {"turned.jpg": _turned(6)})
    two = _source(tmp_path / "two", {"turned.jpg": _turned(6), "drawn.png": _turned(3, "PNG")})
    end = "as in torchvision (Hugging Face's datasets applies it): --apply-exif"
    for source, text in (
        (one, "1 image has an EXIF orientation that was not applied"),
        (two, "2 images have an EXIF orientation that was not applied"),
    ):
        path = tmp_path / f"{source.name}-packed"
        summary, _ = _pack(source, path)
        assert _orientation_lines(path, summary) == [f"  orientation: {text}, {end}"]
        applied = tmp_path / f"{source.name}-applied"
        assert _orientation_lines(applied, _pack(source, applied, apply_exif=True)[0]) == []


@pytest.mark.parametrize(
    ("high", "white"), [(4095, 4095), (4000, 4095), (4096, 8191), (1, 1), (32766, 32767)]
)
def test_dark_images_are_warned_of_with_the_level_to_choose(
    high: int, white: int, tmp_path: Path
) -> None:
    source = _source(
        tmp_path / "source", {"deep.png": _levels(high), "dim.png": _levels(high // 2)}
    )
    _, shown = _pack(source, tmp_path / "packed", shards=3)
    assert (
        f"warning: the highest level in images with 16 bits a sample is {high:,}, {_DARK}" in shown
    )
    assert f"pack again with --png16-max {white}\n" in shown
    summary, shown = _pack(source, tmp_path / "again", png16_max=white, shards=3)
    assert "warning" not in shown
    assert "clipped" not in summary.manifest.odd
    assert summary.manifest.options["png16_max"] == white


def test_bright_images_and_those_of_8_bits_are_not_warned_of(tmp_path: Path) -> None:
    eight = _source(tmp_path / "eight", {"grey.png": encoded(Image.new("L", (16, 16), 3), "PNG")})
    bright = _source(tmp_path / "bright", {"deep.png": _levels(4095), "full.png": _levels(40_000)})
    for source in (eight, bright):
        summary, shown = _pack(source, tmp_path / f"{source.name}-packed")
        assert "warning" not in shown
        assert "png16_max" not in summary.manifest.options


def test_a_packing_with_another_white_level_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = _source(tmp_path / "source", {"deep.png": _levels(4095), "bad.png": b"no image"})
    with pytest.raises(DatasetError, match="without --strict"):
        _pack(source, tmp_path / "packed", strict=True)
    with pytest.raises(ConfigError, match=r"\(png16-max was 65535, now 4095\)"):
        _pack(source, tmp_path / "packed", png16_max=4095)


def test_python_gets_the_warning_with_the_argument_to_give(tmp_path: Path) -> None:
    samples = [("a", _levels(4095), 0), ("b", _levels(100), 0)]
    with pytest.warns(UserWarning, match=r"4,095 white, pack again with png16_max=4095$"):
        feeder.pack_samples(samples, tmp_path / "packed")
    packed = feeder.pack_samples(samples, tmp_path / "again", png16_max=4095)
    assert packed.samples == 2
    with pytest.raises(ConfigError, match=r"png16_max=0 is not within 1 .. 65535"):
        feeder.pack_samples(samples, tmp_path / "none", png16_max=0)


def test_kinds_without_a_bit_in_the_record_are_counted_shown_and_verified(tmp_path: Path) -> None:
    files = {
        "sign.ppm": encoded(image(), "PPM"),
        "mask.pgm": encoded(image().convert("L"), "PPM"),
        "bright.png": _levels(5000),
    }
    path = tmp_path / "packed"
    summary, _ = _pack(_source(tmp_path / "source", files), path, png16_max=4095)
    assert summary.manifest.odd == {"ppm": 2, "png": 1, "clipped": 1}
    assert _problems(path) == []
    page = (path / SURVEY_NAME).read_text("utf-8")
    for text in ("PBM, PGM or PPM", "<b>2</b> of 4 samples", "Levels above white"):
        assert text in page
    _rewrite(path, load_manifest(path), odd={"ppm": 2, "png": 2, "clipped": 1})
    assert _problems(path) == [
        "manifest.json: its counts of odd kinds or subsamplings differ from the shards'"
    ]


def _rewrite(path: Path, manifest: Manifest, **fields: Any) -> None:
    changed = msgspec.structs.replace(manifest, **fields).sealed()
    (path / "manifest.json").write_bytes(changed.encode())


@pytest.mark.parametrize(
    ("start", "kind", "reason"),
    [
        (b"qoif\0\0\0\x10", "unsupported", "it is a QOI image: convert it to PNG or JPEG"),
        (b"DDS |\0\0\0", "unsupported", "it is a DDS image"),
        (b"\xff\x0a\xfa\x1f", "unsupported", "it is a JPEG XL image"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "unsupported", "it is a JPEG XL image"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "unsupported", "it is a JPEG 2000 image"),
        (b"\xff\x4f\xff\x51\0\x2f", "unsupported", "it is a JPEG 2000 image"),
        (b"\0\0\0\x20ftypavif", "unsupported", "it is an AVIF image"),
        (b"\0\0\0\x1cftypheic", "unsupported", "it is a HEIC image"),
        (b"\0\0\1\0\1\0\x10\x10", "unsupported", "it is an ICO image"),
        (b"P7\nWIDTH 3", "unsupported", "it is a PAM or PFM image"),
        (b"Pf\n3 2\n-1.0\n", "unsupported", "it is a PAM or PFM image"),
        (b'<?xml version="1.0"?><svg', "unsupported", "it is XML or SVG"),
        (b"\n <svg xmlns=", "unsupported", "it is XML or SVG"),
        (b"%PDF-1.7\n", "unsupported", "it is a PDF"),
        (b"\x93NUMPY\1\0", "not-image", "it is a NumPy array"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:",
            "not-image",
            "it is a Git LFS pointer and no image: fetch it with git lfs pull",
        ),
        (
            b"\n<!DOCTYPE html><html>",
            "not-image",
            "it is a page of HTML, as of a failed download: download it again",
        ),
        (b"<HTML><head>", "not-image", "it is a page of HTML"),
        (b"version 1", "not-image", "starts with 76 65 72"),
    ],
)
def test_files_that_are_not_read_are_named_with_a_remedy(
    start: bytes, kind: str, reason: str, tmp_path: Path
) -> None:
    source = _source(tmp_path / "source", {"file.jpg": start + bytes(40)})
    summary, _ = _pack(source, tmp_path / "packed")
    (entry,) = summary.quarantine
    assert (entry.path, entry.kind) == ("a/file.jpg", kind)
    assert entry.reason.startswith(reason)
