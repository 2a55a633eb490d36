"""JPEGs of all kinds that tests need, by real encoders, with content that exposes errors."""

import io
import subprocess
from functools import cache
from pathlib import Path
from shutil import which

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from turbojpeg import TJPF_RGBX, TurboJPEG

from feeder.jpeg.crop_decode import check_blob, rebuild_jpeg
from feeder.jpeg.recode import MCU_PX, TiledJpeg

SAMPLINGS = {"4:4:4": "1x1", "4:2:2": "2x1", "4:2:0": "2x2", "4:4:0": "1x2", "4:1:1": "4x1"}


def picture(width: int, height: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return (height, width, 3) of smooth colour, edges and noise, which use all coefficients."""
    rng = np.random.Generator(np.random.Philox(seed))
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    waves = [np.sin(x / f + c) + np.cos(y / (f + 2) - c) for c, f in enumerate((5.0, 11.0, 3.0))]
    base = 128 + 50 * np.stack(waves, axis=-1)
    base[(x.astype(int) // 9 + y.astype(int) // 7) % 3 == 0] += 40.0
    return np.clip(base + rng.normal(0, 12, base.shape), 0, 255).astype(np.uint8)


def cjpeg(pixels: NDArray[np.uint8], *options: str) -> bytes:
    """Encode with libjpeg-turbo's cjpeg; skips the test if the program is missing."""
    program = which("cjpeg")
    if program is None:
        pytest.skip(
            "cjpeg is missing: apt-get install libjpeg-turbo-progs", allow_module_level=True
        )
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PPM")
    command = [program, *options]
    return subprocess.run(command, input=buffer.getvalue(), stdout=-1, check=True).stdout


def jpegtran(source: bytes, *options: str) -> bytes:
    """Transcode with libjpeg-turbo's jpegtran; skips the test if the program is missing."""
    program = which("jpegtran")
    if program is None:
        pytest.skip(
            "jpegtran is missing: apt-get install libjpeg-turbo-progs", allow_module_level=True
        )
    return subprocess.run([program, *options], input=source, stdout=-1, check=True).stdout


def encode(pixels: NDArray[np.uint8], sampling: str = "4:4:4", quality: int = 85) -> bytes:
    """Encode as baseline JPEG; ``sampling`` is a key of SAMPLINGS or "grey"."""
    options = ["-quality", str(quality)]
    options += ["-grayscale"] if sampling == "grey" else ["-sample", SAMPLINGS[sampling]]
    return cjpeg(pixels, *options)


@cache
def _decoder() -> TurboJPEG:
    return TurboJPEG()


def decode(jpeg: bytes | NDArray[np.uint8], scale: int = 1) -> NDArray[np.uint8]:
    """Decode to (height, width, 3) RGB at 1/scale size; any libjpeg warning raises."""
    factor = (1, scale) if scale > 1 else None
    rgbx = _decoder().decode(jpeg, pixel_format=TJPF_RGBX, scaling_factor=factor)
    return np.asarray(rgbx)[:, :, :3]


def mcus_of(tiled: TiledJpeg) -> tuple[int, int]:
    """Return the MCUs in a row, and the rows of them."""
    mcu_width_px, mcu_height_px = MCU_PX[tiled.subsampling]
    return -(-tiled.width // mcu_width_px), -(-tiled.height // mcu_height_px)


def check_blob_of(tiled: TiledJpeg) -> int:
    """Check that the blob decodes to its end and is of this image; return the MCUs of a tile."""
    checksum, width, height, *mcu_px, tile_mcus = check_blob(tiled.blob)
    assert checksum == tiled.content_checksum
    assert (width, height) == (tiled.width, tiled.height)
    assert tuple(mcu_px) == MCU_PX[tiled.subsampling]
    return tile_mcus


def ordinary(tiled: TiledJpeg) -> bytes:
    """Return a tiled JPEG as an ordinary one."""
    mcus, rows = mcus_of(tiled)
    return rebuild_jpeg(tiled.blob, 0, mcus, 0, rows, tiled.width, tiled.height)


def class_files(folder: Path) -> list[Path]:
    """Return the images of a folder of class folders, sorted."""
    return sorted(path for path in folder.glob("*/*") if path.is_file())
