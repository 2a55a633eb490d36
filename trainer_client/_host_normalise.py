"""Normalises packed pixels on the CPU, in one pass over memory and in the calling thread.

    packed pixels ─► blocks in the L1 cache ─► float32, float16 or bfloat16, (N, H, W, channels)
                                               or (N, channels, H, W)

The pass is in C (trainer_client/native), where that was built: it needs a compiler, and no library.
Otherwise each level's value is looked up with numpy, to the same bits, several times slower.

Needs numpy alone.
"""

import functools
import logging
import math
from types import ModuleType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.errors import ConfigError
from feeder.installation import rebuild_command
from feeder.plan.packing import Packing, Pixels, pixel_layout_of, unpack_levels
from trainer_client._outputs import Outputs
from trainer_client._scaling import Scaling, ValueType

_native: ModuleType | None
try:
    from trainer_client import _native
except ImportError as error:
    _native = None
    _WHY_NOT_NATIVE = str(error)

VERSIONS: Final[tuple[str, ...]] = ("numpy",) if _native is None else ("numpy", *_native.versions())
"""The versions that run here, slowest first: numpy's, and those in C that this CPU can run."""

_log = logging.getLogger("trainer_client")

Values = NDArray[np.float32 | np.float16 | np.uint16]

_STORED_AS: Final[dict[ValueType, type[np.float32 | np.float16 | np.uint16]]] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.uint16,
}


@functools.cache
def _warn_once() -> None:
    _log.warning(
        "normalising on this CPU takes several times as long as it could: the client's C part is "
        "not built (%s); install a C compiler, then %s",
        _WHY_NOT_NATIVE,
        rebuild_command(),
    )


class HostNormaliser:
    """Normalises batches of one packing to one type; holds no buffers, so threads may share it."""

    def __init__(
        self,
        scaling: Scaling,
        value_type: ValueType,
        packing: Packing,
        *,
        channels_first: bool = False,
        version: str = VERSIONS[-1],
    ) -> None:
        """Prepare for pixels of ``packing``; ``version`` is one of VERSIONS.

        ``channels_first`` is whether the values are (N, channels, H, W).
        """
        if version not in VERSIONS:
            raise ConfigError(f"version must be one of {', '.join(VERSIONS)}, got {version!r}")
        self._layout = pixel_layout_of(packing)
        self._scaling = scaling
        self._table = scaling.table(value_type)
        self._stored_as = np.dtype(_STORED_AS[value_type])
        self._channels_first = channels_first
        self._version = version
        if _native is None:
            _warn_once()

    @property
    def is_native(self) -> bool:
        """Whether the C part does the work."""
        return self._version != "numpy"

    def take_output(self, pixels: Pixels, outputs: Outputs) -> Values:
        """Return an array of ``outputs`` for what ``pixels`` become."""
        shape = self._output_shape(pixels)
        memory = outputs.take(math.prod(shape) * self._stored_as.itemsize)
        return memory.view(self._stored_as).reshape(shape)

    def __call__(self, pixels: Pixels, out: Values) -> None:
        """Write normalised ``pixels`` to ``out``, both C-contiguous.

        ``pixels`` are a batch in the packing's layout and dtype. ``out`` is (N, H, W, channels), or
        (N, channels, H, W), of float32, float16 or, for bfloat16, uint16; it may not overlap with
        ``pixels``.

        Raises ValueError, TypeError or BufferError for arrays of another shape, type or layout.
        """
        if pixels.dtype != self._layout.dtype:
            raise TypeError(f"pixels must be {self._layout.dtype}, they are {pixels.dtype}")
        if out.dtype != self._stored_as:
            raise TypeError(f"out must be {self._stored_as}, it is {out.dtype}")
        if out.shape != self._output_shape(pixels):
            raise ValueError(f"out has shape {out.shape}, the pixels have {pixels.shape}")
        if not self.is_native or _native is None:
            self._look_up(pixels, out)
            return
        if self._layout.is_float:  # the packing for comparisons: one more pass
            pixels = pixels.astype(np.int8)
        _native.normalise(
            pixels,
            self._layout.channels_first,
            self._table,
            self._scaling.scale,
            self._scaling.bias,
            out,
            self._channels_first,
            self._version,
        )

    def _output_shape(self, pixels: Pixels) -> tuple[int, ...]:
        axis = 1 if self._layout.channels_first else 3
        if pixels.ndim != 4 or pixels.shape[axis] != self._layout.channels:
            raise ValueError(
                f"pixels must have 4 axes, axis {axis} of {self._layout.channels} channels; "
                f"they have shape {pixels.shape}"
            )
        images, height, width = (side for at, side in enumerate(pixels.shape) if at != axis)
        channels = self._scaling.channels
        if self._channels_first:
            return images, channels, height, width
        return images, height, width, channels

    def _look_up(self, pixels: Pixels, out: Values) -> None:
        """Look each level up, image by image, to keep what is between in the caches."""
        if not pixels.flags.c_contiguous or not out.flags.c_contiguous:
            raise ValueError("pixels and out must be C-contiguous")
        if self._channels_first:
            out = np.moveaxis(out, 1, 3)
        for image, values in zip(pixels, out, strict=True):
            (levels,) = unpack_levels(image[None], self._layout)
            for channel in range(3):
                values[..., channel] = self._table[channel][levels[..., channel]]
            values[..., 3:] = 0
