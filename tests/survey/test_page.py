"""The survey: well-formed, complete, loading nothing, and with names that stay text."""

import base64
import hashlib
import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from feeder.dataset.format import Oddity
from feeder.dataset.manifest import Manifest, load_manifest
from feeder.dataset.opened import Dataset
from feeder.errors import DatasetError
from feeder.jpeg.recode import Subsampling
from feeder.plan.labels import LabelSpec
from feeder.source.item_bytes import FaultKind
from feeder.survey.duplicates import DUPLICATES_NAME, find_duplicates
from feeder.survey.page import SURVEY_NAME, render_survey
from feeder.survey.words import LEFT_OUT, ODD_KINDS, SUBSAMPLINGS
from tests.support.sources import (
    call_feeder,
    encoded,
    error_line,
    image,
    make_source,
    pack,
    run_inline,
)
from tests.support.synthetic_sets import (
    EVERY_KIND,
    Sample,
    class_names,
    classes_of,
    tiled_image,
    write_labelled,
    write_set,
)

_REFERENCES = {"src", "href", "xlink:href", "srcset", "action", "data", "poster", "background"}
_POLICY = "default-src 'none'; style-src 'sha256-{}'; img-src data:; base-uri 'none'; "
_POLICY += "form-action 'none'"


class ReadPage:
    """What a parser finds on a page, which is well-formed and loads nothing."""

    def __init__(self, html: str) -> None:
        self.html = html
        # As XML, elements without an end end themselves; words go on after a <wbr>.
        xml = re.sub(r"(<(?:meta|img)[^>]*)>", r"\1/>", html.replace("<wbr>", ""))
        root = ElementTree.fromstring(xml.removeprefix("<!DOCTYPE html>"))
        self.elements = list(root.iter())
        style = root.find("head/style")
        assert style is not None
        digest = base64.b64encode(hashlib.sha256(str(style.text).encode()).digest()).decode()
        (policy,) = (each.get("content") for each in self.elements if "http-equiv" in each.attrib)
        assert policy == _POLICY.format(digest)
        assert not re.search(r"url\(|@import|https?:|javascript:|\sstyle=|\son\w+=", html)
        style.text = ""
        self.texts = list(root.itertext())
        """Of each element without child elements, and between elements."""
        self.text = " ".join(" ".join(self.texts).split())
        """All text, with single spaces."""
        self.tables = {
            table.findtext("caption", ""): [
                ["".join(cell.itertext()) for cell in row] for row in table.iter("tr")
            ]
            for table in root.iter("table")
        }
        """The cells of each table's rows, by caption."""
        attributes = [pair for element in self.elements for pair in element.attrib.items()]
        references = [value for name, value in attributes if name in _REFERENCES]
        self.pictures = [each for each in references if each.startswith("data:image/jpeg;")]
        anchors = [f"#{value}" for name, value in attributes if name == "id"]
        assert len({*anchors}) == len(anchors)
        assert {*references} <= {*self.pictures, *anchors}


_HOSTILE = '<script>alert("1")</script>&amp;\u202e\udc80\n'


def _left_out(path: str, kind: str = "truncated", reason: str = "it ends early") -> Any:
    return SimpleNamespace(path=path, kind=kind, reason=reason)


def _read(folder: Path, manifest: Manifest, quarantine: Any = ()) -> ReadPage:
    with Dataset(folder, manifest, open_shards=2) as dataset:
        return ReadPage(render_survey(dataset, quarantine, find_duplicates(dataset)))


@pytest.mark.parametrize("labels", EVERY_KIND, ids=lambda spec: f"{spec.kind}{spec.width}")
def test_labels_of_every_kind_have_a_page(tmp_path: Path, labels: LabelSpec) -> None:
    manifest = write_labelled(tmp_path, labels, samples=23)
    page = _read(tmp_path, manifest)
    assert "No image of the source was left out." in page.text
    assert "Every source is a baseline JPEG without anything unusual." in page.text
    assert sum(element.tag == "h2" for element in page.elements) == 7
    if labels.kind == "index":
        rows = page.tables["All classes by number of images"][1:]
        counts = {row[1]: row[2] for row in rows}
        assert counts == {
            name: str(len(range(n, 23, 3))) for n, name in enumerate(manifest.classes)
        }
    elif labels.kind == "multi":
        rows = page.tables["All classes by number of samples"][1:]
        held = [each for sample in range(23) for each in classes_of(sample, labels)]
        expected = np.bincount(held, minlength=labels.width).tolist()
        assert {row[1]: int(row[2]) for row in rows} == dict(
            zip(class_names(labels), expected, strict=True)
        )
        assert "5 samples have no class" in page.text
    elif labels.kind == "float":
        for value in range(labels.width):
            bars = page.tables[f"Value {value}: samples"][1:]
            assert sum(int(row[1]) for row in bars) == 23
    else:
        assert "The samples have no labels." in page.text


def test_names_from_outside_stay_text_and_are_cut(tmp_path: Path) -> None:
    samples = [Sample(name=f"{n}{_HOSTILE}", source=1, label=n, flags=Oddity.PNG) for n in (0, 1)]
    manifest = write_set(tmp_path, samples, classes=(f"a{_HOSTILE}", f"b{_HOSTILE}", _HOSTILE))
    left_out = [_left_out(f"c{_HOSTILE}", f"kind{_HOSTILE}", f"reason{_HOSTILE}")]
    page = _read(tmp_path, manifest, left_out)
    tags = {element.tag for element in page.elements}
    assert tags.isdisjoint({"script", "link", "iframe", "object"})
    shown = '<script>alert("1")</script>&amp;\\u202e\\udc80\\n'
    for text in ("a", "b", "", "0", "1", "c", "kind", "reason"):
        assert f"{text}{shown}" in "".join(page.texts), text
    samples = [Sample(name="x" * 60_000, flags=Oddity.GIF)] * 2
    page = _read(tmp_path / "long", write_set(tmp_path / "long", samples, classes=("y" * 100_000,)))
    assert len(page.text) < 10_000
    assert re.search("x{20,}…x{20,}", page.text)


def test_counts_are_those_of_the_manifest(tmp_path: Path) -> None:
    flags = [Oddity.PNG if n % 2 else Oddity(0) for n in range(17)]
    flags[1] |= Oddity.WARNED
    flags[2] |= Oddity.EXIF_IGNORED | Oddity.WRONG_SUFFIX
    flags[3] |= Oddity.EXIF_IGNORED
    samples = [
        Sample(name=f"s{n}.png", label=n % 3, flags=flags[n], tiled=tiled_image(40 + n, 30))
        for n in range(17)
    ]
    samples[0] = Sample(name="s0.png", tiled=tiled_image(40, 90))
    manifest = write_set(tmp_path, samples, classes=("a", "b", "c", "none"), quarantined=23)
    page = _read(tmp_path, manifest, [_left_out(f"x{n:02}") for n in range(23)])
    assert "Samples 17 Classes 4" in page.text
    (findings,) = (each for each in page.elements if each.get("class") == "findings")
    assert [each.text for each in findings.iter("a")] == [
        "1 class has no images",
        "23 images (57.5 %) were left out",
        "The decoder complained about 1 image",
        "2 images have an EXIF rotation that was ignored",
    ]
    for kind, count in manifest.odd.items():
        assert f"{ODD_KINDS[kind].title} {count} of 17 samples" in page.text
    kinds = {each.findtext("div/h3"): each for each in page.elements if each.get("class") == "kind"}
    names = [each.text for each in kinds["PNG"].iter("span") if each.get("class") == "name"]
    assert names == [f"s{n}.png" for n in (1, 3, 5, 7, 9, 11)]
    assert sum(int(row[1]) for row in page.tables["Chroma subsampling"][1:]) == 17
    charts = [each for each in page.elements if each.get("role") == "img"]
    assert len(charts) == 5
    assert {bar.findtext("title") for bar in charts[0].iter("rect")} >= {"41–42 px: 2 images"}
    for chart in charts:  # for screen readers
        described = {chart.get("aria-labelledby"), chart.get("aria-describedby")}
        assert described == {each.get("id") for each in chart if each.tag in ("title", "desc")}
    for name in (
        "Longer side",
        "Shorter side",
        "Pixels",
        "Aspect ratio",
        "Bytes of an image, packed",
    ):
        assert sum(int(row[1]) for row in page.tables[f"{name}: images"][1:]) == 17, name
    assert "Longer side 41 px · median 49 px · 90 px" in page.text
    assert "Shorter side 30 px · median 30 px · 40 px" in page.text
    assert (
        "Fewest pixels 41 × 30 px s1.png Most pixels 40 × 90 px s0.png "
        "Widest 56 × 30 px s16.png Tallest 40 × 90 px s0.png"
    ) in page.text
    assert "17 images (100 %) have a shorter side below 224 px" in page.text
    assert "1 class has no images: none ." in page.text
    assert "23 of 40 images (57.5 %) did not become samples." in page.text
    listed = [row[0] for row in page.tables["Left out: truncated"][1:]]
    assert listed == [f"x{n:02}" for n in range(20)]
    assert "and 3 more" in page.text


def test_many_classes_are_a_chart_with_both_ends_as_tables(tmp_path: Path) -> None:
    labels = [0] * 90 + [number for number in range(1, 700) for _ in range(1 + (number < 5))]
    samples = [Sample(name=f"s{n}", label=label) for n, label in enumerate(labels)]
    classes = tuple(f"class{number}" for number in range(760))
    page = _read(tmp_path, write_set(tmp_path, samples, classes=classes))
    largest = page.tables["The largest classes"][1:]
    assert [row[:3] for row in largest[:2]] == [["0", "class0", "90"], ["1", "class1", "2"]]
    smallest = page.tables["The smallest, without empty ones"][1:]
    assert smallest[0][:3] == ["5", "class5", "1"]
    assert "The largest class is 90 times as large as the smallest" in page.text
    assert "60 classes have no images: class700 , class701" in page.text
    assert "class749 and 10 more." in page.text
    bars = [text for text in page.texts if text.endswith(" images") and ". to " in text]
    assert bars[0].startswith("1. to ")
    assert bars[0].endswith(": 90 images")  # as high as the largest of them


def test_pictures_are_small_and_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.survey.pictures._BYTES_MAX", 2_500)
    every = Oddity(sum(Oddity))
    samples = [
        Sample(name=f"s{n}", source=1 + n // 2, flags=every, tiled=tiled_image(300, 200))
        for n in range(60)
    ]
    manifest = write_set(tmp_path, samples, classes=("a",), with_manifest=False)
    page = _read(tmp_path, manifest)
    assert len(page.pictures) == 6 * len(Oddity) + 12
    for picture in {*page.pictures}:
        data = base64.b64decode(picture.partition(",")[2])
        assert len(data) <= 2_500
        with Image.open(io.BytesIO(data)) as decoded:
            assert decoded.format == "JPEG"
            assert max(decoded.size) <= 128
    assert len(page.html) < 1_200_000


def test_every_oddity_subsampling_and_fault_has_words() -> None:
    assert sorted(LEFT_OUT) == sorted(get_args(FaultKind))
    assert all(sentence.endswith(".") for sentence in LEFT_OUT.values())
    assert sorted(ODD_KINDS) == sorted(kind for flag in Oddity for kind in flag.kinds())
    assert {*SUBSAMPLINGS} == {each.name.lower() for each in Subsampling} - {"other"}


def test_an_index_that_is_not_the_manifests_is_refused(tmp_path: Path) -> None:
    manifest = write_labelled(tmp_path, LabelSpec())
    path = tmp_path / manifest.shards[1].name
    content = bytearray(path.read_bytes())
    content[-200] ^= 1
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"shard-00001\.fds does not match the manifest"):
        _read(tmp_path, manifest)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset packed from real files: PNG, CMYK, progressive, truncated, empty, twice."""
    root = tmp_path_factory.mktemp("packed")
    source = make_source(root / "source", 9)
    folder = source / "class0"
    (folder / "drawn.png").write_bytes(encoded(image(50, 40), "PNG"))
    (folder / "print.jpg").write_bytes(encoded(image(50, 40).convert("CMYK")))
    (folder / "scans.jpg").write_bytes(encoded(image(50, 40), progressive=True))
    (folder / "cut.jpg").write_bytes(encoded(image(50, 40))[:600])
    (folder / "empty.jpg").write_bytes(b"")
    (source / "class1" / "again.jpg").write_bytes((folder / "image000.jpg").read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        run_inline(patch, "pack.run", "pack.containers")
        pack(source, root / "packed", shards=2)
    return root / "packed"


def test_the_command_writes_the_page_of_a_packed_dataset(packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    result = call_feeder("survey", packed, "--out", out)
    assert (result.returncode, result.stdout) == (0, f"{out}\n"), result.stderr
    page = ReadPage(out.read_text("utf-8"))
    manifest = load_manifest(packed)
    assert manifest.odd == {"png": 1, "cmyk": 1, "progressive": 1}
    assert manifest.duplicates == 1
    for title in ("PNG", "CMYK JPEG", "Progressive JPEG"):
        assert f"{title} 1 of 13 samples" in page.text
    assert page.tables["Left out: truncated"][1][0] == "class0/cut.jpg"
    assert page.tables["Left out: empty"][1][0] == "class0/empty.jpg"
    assert "1 image has different labels" in page.text
    assert "class1/again.jpg" in page.text
    reports = {packed / DUPLICATES_NAME, packed / SURVEY_NAME}
    packing = {path: path.read_bytes() for path in reports}
    for path in reports:
        path.unlink()
    assert call_feeder("survey", packed).returncode == 0
    assert {path: path.read_bytes() for path in reports} == packing
    assert packing[packed / SURVEY_NAME] == out.read_bytes()


def test_no_dataset_and_a_page_that_cannot_be_written_are_one_line(
    packed: Path, tmp_path: Path
) -> None:
    missing = call_feeder("survey", tmp_path / "missing")
    assert (missing.returncode, "no dataset at" in error_line(missing)) == (3, True)
    unwritten = call_feeder("survey", packed, "--out", tmp_path / "no" / "page.html")
    assert unwritten.returncode == 4
    assert "No such file or directory" in error_line(unwritten)
