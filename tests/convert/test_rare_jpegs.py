"""JPEGs that Pillow decodes and a JPEG of one scan cannot hold are converted, not dropped."""

import io
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feeder.convert.prepare import SourceOptions, prepare_sample
from feeder.dataset.format import Oddity
from feeder.source.item_bytes import SourceError
from tests.support.jpegs import cjpeg, ordinary, picture
from tests.support.sources import encoded, pixels

_OPTIONS = SourceOptions(tile_width_px=32, apply_exif=False, quality=95)
_INCOMPLETE = Oddity.RARE_JPEG | Oddity.WARNED
_EOI = b"\xff\xd9"


def _scan_starts(jpeg: bytes) -> list[int]:
    return [match.start() for match in re.finditer(rb"\xff\xda", jpeg)]


def _check_converted(jpeg: bytes, flags: Oddity) -> None:
    sample = prepare_sample(jpeg, "a.jpg", _OPTIONS)
    assert sample.flags == flags
    expected = encoded(Image.fromarray(pixels(jpeg)), quality=95, subsampling=0)
    assert np.array_equal(pixels(ordinary(sample.tiled)), pixels(expected))


def _refusal(jpeg: bytes) -> str:
    with pytest.raises(SourceError) as caught:
        prepare_sample(jpeg, "a.jpg", _OPTIONS)
    return caught.value.kind


def test_progressive_jpegs_without_their_last_scans_are_what_pillow_decodes() -> None:
    whole = cjpeg(picture(64, 48), "-progressive")
    starts = _scan_starts(whole)
    assert len(starts) > 5
    for at in starts[1:]:
        _check_converted(whole[:at] + _EOI, _INCOMPLETE)
    assert prepare_sample(whole, "a.jpg", _OPTIONS).flags == Oddity.PROGRESSIVE


def test_progressive_jpegs_that_are_cut_are_refused() -> None:
    whole = cjpeg(picture(64, 48), "-progressive")
    starts = [*_scan_starts(whole), len(whole) - len(_EOI)]
    for begin, end in itertools.pairwise(starts):
        assert _refusal(whole[:end]) == "truncated"  # between scans, as in Pillow
        middle = whole[: (2 * begin + end) // 3]
        assert _refusal(middle) == "truncated"
        assert _refusal(middle + _EOI) == "truncated"


def test_arithmetic_jpegs_without_scans_are_refused_because_a_cut_one_looks_whole() -> None:
    whole = cjpeg(picture(64, 48), "-progressive", "-arithmetic")
    for at in _scan_starts(whole)[1:]:
        assert _refusal(whole[:at] + _EOI) == "truncated"


@pytest.fixture(name="three_scans")
def _three_scans(tmp_path: Path) -> bytes:
    """Return a baseline JPEG with a scan and a quantisation table for each component."""
    script = tmp_path / "scans.txt"
    script.write_text("0;\n1;\n2;\n")
    return cjpeg(picture(64, 48), "-scans", str(script), "-sample", "1x1")


def test_components_without_a_scan_are_what_pillow_decodes(three_scans: bytes) -> None:
    assert prepare_sample(three_scans, "a.jpg", _OPTIONS).flags == Oddity(0)
    for at in _scan_starts(three_scans)[1:]:
        _check_converted(three_scans[:at] + _EOI, _INCOMPLETE)


def test_tables_that_change_between_scans_are_what_pillow_decodes(three_scans: bytes) -> None:
    header = three_scans[: _scan_starts(three_scans)[0]]
    tables = [match.start() for match in re.finditer(rb"\xff\xdb", header)]
    coarse = b"\xff\xdb\x00\x43\x00" + bytes([40] * 64)
    fine = three_scans[tables[0] : tables[0] + 69]
    assert fine[2:5] == b"\x00\x43\x00"
    for at in _scan_starts(three_scans)[1:]:
        # the luma's table changes after its scan, and once more before the last
        _check_converted(three_scans[:at] + coarse + three_scans[at:], Oddity.RARE_JPEG)
    first, *_, last = _scan_starts(three_scans)
    same = three_scans[:first] + fine + three_scans[first:last] + fine + three_scans[last:]
    assert prepare_sample(same, "a.jpg", _OPTIONS).flags == Oddity(0)


def test_a_table_that_two_components_use_in_turns_is_never_taken_for_one(
    three_scans: bytes,
) -> None:
    # all components use table 0, which gets other values before the second scan, and its old ones
    # before the third
    frame = three_scans.index(b"\xff\xc0")
    shared = bytearray(three_scans)
    for component in range(3):
        shared[frame + 12 + 3 * component] = 0
    _, second, third = _scan_starts(three_scans)
    table = three_scans.index(b"\xff\xdb")
    fine, coarse = three_scans[table : table + 69], b"\xff\xdb\x00\x43\x00" + bytes([40] * 64)
    data = bytes(shared[:second]) + coarse + bytes(shared[second:third]) + fine
    data += bytes(shared[third:])
    with Image.open(io.BytesIO(data)) as opened:
        opened.load()
    _check_converted(data, Oddity.RARE_JPEG)
