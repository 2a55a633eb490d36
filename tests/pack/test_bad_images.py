"""Images that are bad or odd: how many a packing leaves out, and what it says of them."""

import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import feeder
from feeder.cli.pack import format_summary
from feeder.dataset.manifest import load_manifest
from feeder.errors import ConfigError, DatasetError
from feeder.pack.options import PackOptions
from feeder.pack.progress import ProgressLine
from feeder.pack.run import PackSummary, pack_dataset
from feeder.pack.work_folder import QuarantineEntry
from tests.support.sources import (
    call_feeder,
    encoded,
    error_line,
    file_tree,
    image,
    make_source,
    pack,
    run_inline,
)


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(monkeypatch, "pack.run", "pack.containers", "pack.verify")


def test_a_limit_is_a_share_or_a_number() -> None:
    for text, files, allowed in (
        ("5%", 100, 5),
        ("5%", 19, 0),
        ("0", 1000, 0),
        ("0.1%", 1_281_167, 1281),
        ("29%", 100, 29),
        ("12", 5, 12),
    ):
        assert PackOptions(max_bad=text).allowed_bad(files) == allowed
    for text in ("", "x", "-1", "0.5", "101%", "5 %%", "1e3", "nan%"):
        with pytest.raises(ConfigError, match=r"--max-bad"):
            PackOptions(max_bad=text)


def test_the_remedy_fits_the_option_and_the_share(tmp_path: Path) -> None:
    bad = [QuarantineEntry(path=name, kind="no-label", reason="none") for name in ("b", "a")]
    for options, files, remedy in (
        (PackOptions(max_bad="5%"), 3, "leave them out with --max-bad 67%"),
        (PackOptions(max_bad="1"), 3, "leave them out with --max-bad 2"),
        (PackOptions(strict=True), 3, "repair or remove them, or pack without --strict"),
        (PackOptions(max_bad="100%"), 2, "check --source, --image and --label: none of the images"),
    ):
        with pytest.raises(DatasetError, match=remedy) as error:
            options.check_bad(bad, files, tmp_path, untried=0)
        assert f"2 of {files} images are bad (2 no-label)" in str(error.value)
        path = tmp_path / "quarantine.jsonl"
        assert f"first a, no-label (none); all are in {path}" in str(error.value)
    one = r"^1 of 2 images is bad .*; the list is .* or more: 1 image is not tried yet$"
    with pytest.raises(DatasetError, match=one):
        PackOptions(max_bad="0").check_bad(bad[:1], 2, tmp_path, untried=1)


@given(st.data())
def test_what_is_advised_holds_when_all_images_were_tried(data: st.DataObject) -> None:
    files = data.draw(st.integers(2, 2000))
    count = data.draw(st.integers(1, files - 1))
    texts = st.one_of(
        st.decimals(0, 100, places=3).map(lambda share: f"{share}%"),
        st.integers(0, files).map(str),
    )
    options = PackOptions(max_bad=data.draw(texts))
    bad = [QuarantineEntry(path="a", kind="empty", reason="no bytes")] * count
    with tempfile.TemporaryDirectory() as folder:
        try:
            options.check_bad(bad, files, Path(folder), untried=0)
        except DatasetError as error:
            assert count > options.allowed_bad(files)
            advised = str(error).rpartition("--max-bad ")[2]
            assert advised.endswith("%") == options.max_bad.endswith("%")
            PackOptions(max_bad=advised).check_bad(bad, files, Path(folder), untried=0)
        else:
            assert count <= options.allowed_bad(files)


def test_too_many_bad_images_publish_nothing_and_a_larger_share_goes_on_at_once(
    tmp_path: Path,
) -> None:
    source = make_source(tmp_path / "source", 20)
    for number in range(3):
        (source / "class1" / f"broken{number}.jpg").write_bytes(b"no image")
    (source / "class2" / "empty.jpg").touch()
    packed = tmp_path / "packed"
    line = error_line(result := call_feeder("pack", source, packed, "--shards", "1"))
    assert result.returncode == 3
    assert "4 of 24 images are bad (3 not-image, 1 empty), more than --max-bad 5%" in line
    assert "first class1/broken0.jpg, not-image" in line
    assert line.endswith("leave them out with --max-bad 17%")
    assert [path.name for path in packed.iterdir()] == [".packing"]
    listed = (packed / ".packing" / "quarantine.jsonl").read_text().splitlines()
    assert len(listed) == 4
    again = call_feeder("pack", source, packed, "--shards", "1", "--max-bad", "17%")
    assert again.returncode == 0, again.stderr
    assert "this run: 0 files" in again.stdout
    manifest = load_manifest(packed)
    assert (manifest.samples, manifest.quarantined) == (20, 4)
    pack(source, tmp_path / "at-once", shards=1, max_bad="4")
    assert file_tree(tmp_path / "at-once") == file_tree(packed)


# Images that are unusual: turned, dark, clipped, or of no format that packing reads


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
    """Pack; return the summary, and what went to stderr."""
    shown = io.StringIO()
    options = {"max_bad": "95%", **options}
    summary = pack_dataset(source, destination, PackOptions(**options), ProgressLine(shown))
    return summary, shown.getvalue()


def test_orientations_that_are_not_applied_have_a_line_with_the_remedy(tmp_path: Path) -> None:
    files = {"turned.jpg": _turned(6)}
    end = "was not applied, as in torchvision (Hugging Face's datasets applies it): --apply-exif"
    for name, more, text in (
        ("one", {}, "1 image has an EXIF orientation that"),
        ("two", {"drawn.png": _turned(3, "PNG")}, "2 images have an EXIF orientation that"),
    ):
        source, lines = _source(tmp_path / name, files | more), []
        for is_applied in (False, True):
            path = tmp_path / f"{name}-{is_applied}"
            lines += format_summary(path, _pack(source, path, apply_exif=is_applied)[0])
        shown = [line for line in lines if line.startswith("  orientation")]
        assert shown == [f"  orientation: {text} {end}"]


@pytest.mark.parametrize(("high", "white"), [(4095, 4095), (4096, 8191), (32766, 32767)])
def test_dark_images_are_warned_of_with_the_level_to_choose(
    high: int, white: int, tmp_path: Path
) -> None:
    files = {"deep.png": _levels(high), "dim.png": _levels(high // 2)}
    source = _source(tmp_path / "source", files)
    _, shown = _pack(source, tmp_path / "packed", shards=3)
    assert (
        f"warning: the highest level in images with 16 bits a sample is {high:,}, and 65,535 "
        f"becomes white, so that they are dark: to make {white:,} white, pack again with "
        f"--png16-max {white}\n"
    ) in shown
    summary, shown = _pack(source, tmp_path / "again", png16_max=white, shards=3)
    assert "warning" not in shown
    assert "clipped" not in summary.manifest.odd
    assert summary.manifest.options["png16_max"] == white


def test_python_gets_the_warning_with_the_argument_to_give(tmp_path: Path) -> None:
    samples = [("a", _levels(4095), 0), ("b", _levels(100), 0)]
    warning = r"4,095 white, pack again with png16_max=4095$"
    with pytest.warns(UserWarning, match=warning) as caught:
        feeder.pack_samples(samples, tmp_path / "packed")
    assert {each.filename for each in caught} == {__file__}  # the line that called
    assert feeder.pack_samples(samples, tmp_path / "again", png16_max=4095).samples == 2
    with pytest.raises(ConfigError, match=r"png16_max=0 is not within 1 .. 65535"):
        feeder.pack_samples(samples, tmp_path / "none", png16_max=0)


def test_files_that_are_not_read_are_named_with_a_remedy(tmp_path: Path) -> None:
    unsupported = {
        b"qoif\0\0\0\x10": "it is a QOI image: convert it to PNG or JPEG",
        b"\0\0\0\x0cJXL \r\n\x87\n": "it is a JPEG XL image",
        b"\0\0\0\x0cjP  \r\n\x87\n": "it is a JPEG 2000 image",
        b"\0\0\0\x20ftypavif": "it is an AVIF image",
        b"\0\0\0\x1cftypheic": "it is a HEIC image",
        b"\0\0\1\0\1\0\x10\x10": "it is an ICO image",
        b"P7\nWIDTH 3": "it is a PAM or PFM image",
        b'<?xml version="1.0"?><svg': "it is XML or SVG",
        b"%PDF-1.7\n": "it is a PDF",
    }
    no_image = {
        b"\x93NUMPY\1\0": "it is a NumPy array",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:": (
            "it is a Git LFS pointer and no image: fetch it with git lfs pull"
        ),
        b"\n<!DOCTYPE html><html>": "it is a page of HTML, as of a failed download: download it",
        b"version 1": "starts with 76 65 72",
    }
    expected = [*((start, "unsupported", reason) for start, reason in unsupported.items())]
    expected += [(start, "not-image", reason) for start, reason in no_image.items()]
    files = {f"{n:02}.jpg": start + bytes(40) for n, (start, _, _) in enumerate(expected)}
    summary, _ = _pack(_source(tmp_path / "source", files), tmp_path / "packed")
    assert [entry.path for entry in summary.quarantine] == [f"a/{name}" for name in files]
    for entry, (_, kind, reason) in zip(summary.quarantine, expected, strict=True):
        assert entry.kind == kind
        assert entry.reason.startswith(reason)
