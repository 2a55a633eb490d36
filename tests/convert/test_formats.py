"""Every TIFF compression that the documentation lists is packed with the right pixels."""

import itertools
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from feeder.convert.prepare import SourceOptions, prepare_sample
from feeder.dataset.manifest import load_manifest
from feeder.source.item_bytes import SourceError, sniff_format
from tests.support.jpegs import ordinary
from tests.support.sources import encoded, image, pixels, run_feeder

LOSSLESS = ("tiff_lzw", "tiff_deflate", "tiff_adobe_deflate", "packbits", "lzma", "zstd")
BILEVEL = ("group3", "group4", "tiff_ccitt")
OPTIONS = SourceOptions(tile_width_px=32, apply_exif=False, quality=95)
WIDTH, HEIGHT = 61, 47


def tiff(levels: NDArray[np.uint8], *, tile: int = 0, planar: bool = False) -> bytes:
    """Return RGB levels as a deflate TIFF, in square tiles or one plane per channel.

    Pillow can write neither, and reads them through libtiff.
    """
    height, width, _ = levels.shape
    planes = [levels[..., channel : channel + 1] for channel in range(3)] if planar else [levels]
    side = (tile or height, tile or width)
    pieces: list[bytes] = []
    for plane in planes:
        for y, x in itertools.product(range(0, height, side[0]), range(0, width, side[1])):
            piece = np.zeros((*side, plane.shape[2]), np.uint8)
            part = plane[y : y + side[0], x : x + side[1]]
            piece[: part.shape[0], : part.shape[1]] = part
            pieces.append(zlib.compress(piece.tobytes()))
    offsets = list(itertools.accumulate((len(piece) for piece in pieces), initial=8))
    layout = (
        {322: [tile], 323: [tile], 324: offsets[:-1], 325: [len(piece) for piece in pieces]}
        if tile
        else {273: offsets[:-1], 278: [height], 279: [len(piece) for piece in pieces]}
    )
    tags = {
        **{256: [width], 257: [height], 258: [8, 8, 8], 259: [8], 262: [2], 277: [3]},
        **{284: [2 if planar else 1]},
        **layout,
    }
    body = b"".join(pieces)
    body += b"\0" * (len(body) % 2)
    entries, beyond = b"", b""
    at = 8 + len(body) + 2 + 12 * len(tags) + 4
    for tag, values in sorted(tags.items()):
        data = struct.pack(f"<{len(values)}I", *values)
        if len(data) > 4:
            entries += struct.pack("<HHII", tag, 4, len(values), at + len(beyond))
            beyond += data
        else:
            entries += struct.pack("<HHI", tag, 4, len(values)) + data
    directory = struct.pack("<H", len(tags)) + entries + bytes(4)
    return b"II*\0" + struct.pack("<I", 8 + len(body)) + body + directory + beyond


def as_packed(levels: Image.Image) -> NDArray[np.uint8]:
    """Return the pixels of an image after JPEG encoding at packing's default quality."""
    return pixels(encoded(levels.convert("RGB"), quality=95, subsampling=0))


def compressed() -> dict[str, tuple[bytes, Image.Image]]:
    """Return each file and its image, by name: every compression, mode and layout."""
    rgb = image(WIDTH, HEIGHT)
    levels = np.asarray(rgb)
    files: dict[str, tuple[bytes, Image.Image]] = {}
    for compression in LOSSLESS:
        for mode in ("RGB", "RGBA", "L", "P", "CMYK"):
            shown = rgb.convert(mode)
            data = encoded(shown, "TIFF", compression=compression)
            files[f"{compression}-{mode}"] = data, shown
    for compression in BILEVEL:
        shown = rgb.convert("1")
        files[compression] = encoded(shown, "TIFF", compression=compression), shown
    predicted = encoded(rgb, "TIFF", compression="tiff_lzw", tiffinfo={317: 2})
    files["tiff_lzw-predictor"] = predicted, rgb
    files["big"] = encoded(rgb, "TIFF", big_tiff=True), rgb
    files["tiles"] = tiff(levels, tile=16), rgb
    files["planes"] = tiff(levels, planar=True), rgb
    files["planes-of-tiles"] = tiff(levels, tile=32, planar=True), rgb
    return files


def test_tiffs_of_every_compression_survive_pack_verify_and_unpack(tmp_path: Path) -> None:
    files = compressed()
    folder = tmp_path / "source" / "tiffs"
    folder.mkdir(parents=True)
    for name, (data, _) in files.items():
        (folder / f"{name}.tif").write_bytes(data)
    for verb, arguments in (
        ("pack", (tmp_path / "source", tmp_path / "packed")),
        ("verify", (tmp_path / "packed",)),
        ("unpack", (tmp_path / "packed", tmp_path / "back")),
    ):
        result = run_feeder(verb, *arguments)
        assert result.returncode == 0, result.stderr
    manifest = load_manifest(tmp_path / "packed")
    assert (manifest.samples, manifest.quarantined) == (len(files), 0)
    assert manifest.odd == {"tiff": len(files)}
    for name, (_, shown) in files.items():
        (back,) = (tmp_path / "back" / "tiffs").glob(f"{name}.*")
        assert np.array_equal(pixels(back.read_bytes()), as_packed(shown)), name


@pytest.mark.parametrize("compression", ["jpeg", "webp"])
def test_tiffs_with_a_lossy_compression_pack_as_pillow_decodes_them(compression: str) -> None:
    data = encoded(image(WIDTH, HEIGHT), "TIFF", compression=compression)
    sample = prepare_sample(data, "a/b.tif", OPTIONS)
    assert np.array_equal(pixels(ordinary(sample.tiled)), as_packed(Image.fromarray(pixels(data))))
    difference = np.abs(pixels(data).astype(int) - np.asarray(image(WIDTH, HEIGHT)))
    assert difference.mean() < 12


@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_adobe_deflate"])
def test_sixteen_bit_grey_is_scaled_whatever_the_compression(compression: str | None) -> None:
    ramp = np.tile(np.linspace(0, 65535, 64).astype(np.uint16), (16, 1))
    data = encoded(Image.fromarray(ramp), "TIFF", compression=compression)
    shown = pixels(ordinary(prepare_sample(data, "a/b.tif", OPTIONS).tiled))
    assert np.abs(shown.mean(axis=2) - np.round(ramp / 257.0)).max() <= 3


@pytest.mark.parametrize("compression", [*LOSSLESS, "jpeg"])
def test_damaged_tiffs_are_refused_and_libtiff_writes_nothing(
    compression: str, capfd: pytest.CaptureFixture[str]
) -> None:
    data = encoded(image(200, 150), "TIFF", compression=compression)
    for cut_bytes in (20, len(data) // 2, len(data) - 30):
        with pytest.raises(SourceError) as caught:
            prepare_sample(data[:cut_bytes], "a/b.tif", OPTIONS)
        assert caught.value.kind in ("truncated", "corrupt", "unsupported")
    assert capfd.readouterr().err == ""


def test_bigtiff_is_recognised_by_its_first_bytes() -> None:
    assert sniff_format(b"II+\0\x08\0\0\0") == "TIFF"
    assert sniff_format(b"MM\0+\0\x08\0\0") == "TIFF"
