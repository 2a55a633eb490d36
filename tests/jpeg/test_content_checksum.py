"""Equal images have equal content checksums, whatever their blobs; other images have others."""

import numpy as np
import pytest

from feeder.jpeg.crop_decode import check_blob
from feeder.jpeg.recode import TILE_WIDTHS_PX, tile_jpeg
from tests.support.blobs import Blob
from tests.support.coefficient_jpegs import FACTORS, coefficient_jpeg, draw_blocks, mcu_grid
from tests.support.hard_jpegs import KINDS, hard_jpeg
from tests.support.jpegs import cjpeg, jpegtran, ordinary, picture


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_xxh64_of_the_documented_bytes(kind: str) -> None:
    for seed, (width, height) in enumerate([(1, 1), (9, 17), (70, 45)]):
        tiled = tile_jpeg(hard_jpeg(seed, kind, width, height, 80), 32)
        assert tiled.content_checksum == Blob.parse(tiled.blob).content_checksum()


@pytest.mark.parametrize("kind", KINDS)
def test_it_does_not_depend_on_how_an_image_is_packed(kind: str) -> None:
    source = hard_jpeg(5, kind, 150, 40, 90)
    packed = [tile_jpeg(source, tile_width_px) for tile_width_px in TILE_WIDTHS_PX]
    packed.append(tile_jpeg(ordinary(packed[0]), 32))
    assert len({tiled.content_checksum for tiled in packed}) == 1
    assert {check_blob(tiled.blob)[0] for tiled in packed} == {packed[0].content_checksum}
    assert len({tiled.blob for tiled in packed}) > 1


def test_it_does_not_depend_on_the_sources_coding() -> None:
    source = cjpeg(picture(70, 40), "-sample", "2x2")
    codings = ([], ["-optimize"], ["-progressive"], ["-arithmetic"], ["-restart", "1"])
    packed = [tile_jpeg(jpegtran(source, *coding), 32) for coding in codings]
    assert len({tiled.content_checksum for tiled in packed}) == 1


def test_it_differs_with_a_coefficient_a_quantiser_and_the_size() -> None:
    checksums = []
    rng = np.random.Generator(np.random.Philox(1))
    for kind in FACTORS:
        components, mcus, rows = mcu_grid(kind, 65, 33)
        blocks = draw_blocks(rng, len(components) * mcus * rows, 20, 5, 0.3)
        others = [blocks.copy() for _ in range(3)]
        others[0][0, 0] += 1
        others[1][0, 63] += 1
        others[2][[0, len(components)]] = others[2][[len(components), 0]]
        sources = [coefficient_jpeg(kind, 65, 33, each, 2) for each in (blocks, *others)]
        sources.append(coefficient_jpeg(kind, 65, 33, blocks, 3))
        sources += [coefficient_jpeg(kind, *size, blocks, 2) for size in ((66, 33), (65, 34))]
        checksums += [tile_jpeg(source, 32).content_checksum for source in sources]
    assert len(set(checksums)) == len(checksums)
