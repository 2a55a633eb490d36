"""--max-bad: how many bad images a packing leaves out, and what happens above that."""

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.dataset.manifest import MANIFEST_NAME, load_manifest
from feeder.errors import ConfigError, DatasetError
from feeder.pack.options import BadLimit
from feeder.pack.work_folder import QuarantineEntry
from tests.support.sources import (
    encoded,
    error_line,
    file_tree,
    image,
    make_source,
    pack,
    run_feeder,
    run_inline,
)


@pytest.mark.parametrize(
    ("text", "files", "allowed"),
    [
        ("5%", 100, 5),
        ("5%", 99, 4),
        ("5%", 19, 0),
        ("0%", 1000, 0),
        ("0", 1000, 0),
        ("100%", 7, 7),
        ("0.1%", 1_281_167, 1281),
        ("29%", 100, 29),
        ("12", 5, 12),
    ],
)
def test_a_limit_is_a_share_or_a_number(text: str, files: int, allowed: int) -> None:
    assert BadLimit.parse(text).allowed(files) == allowed


@pytest.mark.parametrize("text", ["", "x", "-1", "0.5", "101%", "5 %%", "1e3", "nan%"])
def test_other_limits_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--max-bad"):
        BadLimit.parse(text)


@pytest.mark.parametrize(
    ("limit", "files", "remedy"),
    [
        (BadLimit.parse("5%"), 3, "leave them out with --max-bad 67%"),
        (BadLimit.parse("1"), 3, "leave them out with --max-bad 2"),
        (BadLimit("--strict allows"), 3, "repair or remove them, or pack without --strict"),
        (BadLimit.parse("1"), 2, "check --source, --image and --label: none of the images"),
        (
            BadLimit("--strict allows"),
            2,
            "check --source, --image and --label: none of the images can be",
        ),
        (BadLimit.parse("100%"), 2, "check --source, --image and --label: none of the images can"),
        (BadLimit.parse("2"), 2, "check --source, --image and --label: none of the images"),
    ],
)
def test_the_remedy_fits_the_option_and_the_share(
    tmp_path: Path, limit: BadLimit, files: int, remedy: str
) -> None:
    bad = [QuarantineEntry(path=name, kind="no-label", reason="none") for name in ("a", "b")]
    with pytest.raises(DatasetError, match=remedy) as error:
        limit.check(2, bad, files, tmp_path, untried=0)
    assert f"2 of {files} images are bad (2 no-label)" in str(error.value)
    assert f"first a, no-label (none); all are in {tmp_path}/quarantine.jsonl" in str(error.value)


def test_one_bad_image_is_worded_as_one(tmp_path: Path) -> None:
    bad = [QuarantineEntry(path="a", kind="empty", reason="no bytes")]
    with pytest.raises(
        DatasetError, match=r"^1 of 2 images is bad .*; the list is .* 1 image is not"
    ):
        BadLimit.parse("0").check(1, bad, 2, tmp_path, untried=1)


@given(st.data())
def test_what_is_advised_holds_when_all_images_were_tried(data: st.DataObject) -> None:
    files = data.draw(st.integers(2, 10_000_000))
    count = data.draw(st.integers(1, files - 1))
    texts = st.one_of(
        st.decimals(0, 100, places=3).map(lambda share: f"{share}%"),
        st.integers(0, files).map(str),
    )
    limit = BadLimit.parse(data.draw(texts))
    bad = [QuarantineEntry(path="a", kind="empty", reason="no bytes")]
    with tempfile.TemporaryDirectory() as folder:
        try:
            limit.check(count, bad, files, Path(folder), untried=0)
        except DatasetError as error:
            advised = str(error).rpartition("--max-bad ")[2]
            assert advised.endswith("%") == limit.option.endswith("%")
            BadLimit.parse(advised).check(count, bad, files, Path(folder), untried=0)
        else:
            assert count <= limit.allowed(files)


@pytest.mark.parametrize("first", ["0%", "0"])
def test_advice_on_the_way_says_that_more_may_be_found_and_the_last_one_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    run_inline(monkeypatch, "pack.run")
    source = tmp_path / "source"
    source.mkdir()
    rows = ["file,label"]
    for number in range(24):
        is_bad = number % 4 == 0
        (source / f"{number}.jpg").write_bytes(b"x" if is_bad else encoded(image(seed=number)))
        rows += [f"{number}.jpg,cat"] * (number > 1)
    (source / "labels.csv").write_text("\n".join(rows))
    advice, lines = first, list[str]()
    while not (tmp_path / "packed" / MANIFEST_NAME).exists():
        try:
            pack(source, tmp_path / "packed", shards=6, max_bad=advice)
        except DatasetError as error:
            assert not lines or "or more: " in lines[-1]
            lines.append(str(error))
            found = re.search(r"with --max-bad (\d+%?)", lines[-1])
            assert found is not None
            assert found[1] != advice
            advice = found[1]
    assert load_manifest(tmp_path / "packed").quarantined == 7
    assert len(lines) > 2
    assert lines[0].endswith("or more: 22 images are not tried yet")


def test_only_bad_images_are_an_error_that_says_why_whatever_may_be_bad(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(3):
        (source / f"{number}.jpg").write_bytes(encoded(image(seed=number)))
    (source / "labels.csv").write_text("file,label\n0.jpg,\n1.jpg,\n2.jpg,\n")
    packed = tmp_path / "packed"
    line = error_line(run_feeder("pack", source, packed, "--max-bad", "100%"))
    listed = packed / ".packing" / "quarantine.jsonl"
    assert "3 of 3 images are bad (3 " in line
    assert "first 0.jpg, " in line
    assert f"all are in {listed}" in line
    assert listed.exists()
    (source / "labels.csv").write_text("file,label\n0.jpg,cat\n1.jpg,cat\n2.jpg,cat\n")
    assert run_feeder("pack", source, packed, "--max-bad", "100%").returncode == 0


def test_too_many_bad_images_publish_nothing_and_a_larger_share_goes_on_at_once(
    tmp_path: Path,
) -> None:
    source = make_source(tmp_path / "source", 20)
    for number in range(3):
        (source / "class1" / f"broken{number}.jpg").write_bytes(b"no image")
    (source / "class2" / "empty.jpg").touch()
    packed = tmp_path / "packed"
    line = error_line(result := run_feeder("pack", source, packed, "--shards", "3"))
    assert result.returncode == 3
    assert "4 of 24 images are bad (3 not-image, 1 empty), more than --max-bad 5%" in line
    assert "first class1/broken0.jpg, not-image" in line
    assert line.endswith("leave them out with --max-bad 17%")
    assert [path.name for path in packed.iterdir()] == [".packing"]
    listed = (packed / ".packing" / "quarantine.jsonl").read_text().splitlines()
    assert len(listed) == 4
    again = run_feeder("pack", source, packed, "--shards", "3", "--max-bad", "17%")
    assert again.returncode == 0, again.stderr
    assert "this run: 0 files" in again.stdout
    manifest = load_manifest(packed)
    assert (manifest.samples, manifest.quarantined) == (20, 4)
    at_once = tmp_path / "at-once"
    other = run_feeder("pack", source, at_once, "--shards", "3", "--max-bad", "4", "--jobs", "1")
    assert other.returncode == 0, other.stderr
    assert file_tree(at_once) == file_tree(packed)
    assert (packed / MANIFEST_NAME).exists()


def test_too_many_items_that_listing_rejects_publish_nothing_either(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    rows = ["file,label"]
    for number in range(10):
        (source / f"{number}.jpg").write_bytes(encoded(image(seed=number)))
        rows += [f"{number}.jpg,cat"] * (number > 2)
    (source / "labels.csv").write_text("\n".join(rows))
    packed = tmp_path / "packed"
    line = error_line(run_feeder("pack", source, packed))
    assert "3 of 10 images are bad (3 no-label), more than --max-bad 5%" in line
    assert len((packed / ".packing" / "quarantine.jsonl").read_text().splitlines()) == 3
    assert run_feeder("pack", source, packed, "--max-bad", "31%").returncode == 0
    assert load_manifest(packed).quarantined == 3
