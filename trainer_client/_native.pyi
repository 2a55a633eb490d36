from typing import Any

from numpy.typing import NDArray

Buffer = bytes | bytearray | memoryview | NDArray[Any]

def normalise(
    pixels: Buffer,
    planar: bool,
    table: Buffer,
    scale: Buffer,
    bias: Buffer,
    out: Buffer,
    to_planes: bool,
    version: str | None,
    /,
) -> None: ...
def versions() -> tuple[str, ...]: ...
