from typing import Any

from numpy.typing import NDArray

Buffer = bytes | bytearray | memoryview | NDArray[Any]

LIBJPEG_TURBO_VERSION: str
LIBJPEG_ADDRESS: int
TURBOJPEG_ADDRESS: int

class JpegError(ValueError): ...

def tile_jpeg(
    source: Buffer, tile_width_px: int, is_portable: bool = ..., /
) -> tuple[bytes, int, int, int, int, bool, bool, tuple[str, ...]]: ...
def transform_jpeg(source: Buffer, orientation: int, /) -> bytes | None: ...
def check_blob(blob: Buffer, /) -> tuple[int, int, int, int, int, int]: ...
def rebuild_jpeg(
    blob: Buffer,
    first_mcu: int,
    end_mcu: int,
    first_row: int,
    end_row: int,
    width: int,
    height: int,
    /,
) -> bytes: ...
def decode_rgbx(jpeg: Buffer, width: int, height: int, stride: int, out: Buffer, /) -> None: ...
def decode_window(
    blob: Buffer,
    blob_bytes: int,
    first_mcu: int,
    end_mcu: int,
    first_row: int,
    end_row: int,
    width: int,
    height: int,
    scale: int,
    stride: int,
    out: Buffer,
    version: str | None,
    /,
) -> bool: ...
def decode_versions(vendor: str = ..., family: int = ..., /) -> tuple[str, ...]: ...
def resize_pack(
    picture: Buffer,
    stride: int,
    width: int,
    height: int,
    box: tuple[float, float, float, float],
    origin: tuple[int, int],
    resampling: int,
    size: int,
    mirrored: bool,
    out: Buffer,
    channels: int,
    planar: bool,
    signed: bool,
    version: str | None,
    /,
) -> None: ...
def resize_versions() -> tuple[str, ...]: ...
def blur(
    levels: Buffer, width: int, height: int, weights: Buffer, out: Buffer, portable: bool, /
) -> None: ...
def find_offsets(
    directory: Buffer,
    source: int,
    hashes: Buffer,
    samples: Buffer,
    probes: int,
    offsets: Buffer,
    /,
) -> None: ...
def store_word(words: Buffer, index: int, value: int, /) -> None: ...
