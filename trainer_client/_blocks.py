"""Normalises on the CPU with torch alone, for environments without the C part.

The same arithmetic as ``_device.normalise``, in blocks that stay in the cache, because each step of
the plain function is a pass over memory there.
"""

from typing import Final

import numpy as np
import torch

_ROW_PX: Final = 256  # scale and bias, repeated this often, fit the L1 cache
_BLOCK_PX: Final = 8 * 1024  # 32,768 values: the most that torch computes in one thread


class Blocks:
    """Normalises the default packing to four channels, through two reused buffers.

    A block is small enough for torch to process it in one thread. On cores shared with a daemon's
    workers, more threads lose more by waiting for each other than they gain.
    """

    def __init__(self, scale: torch.Tensor, bias: torch.Tensor) -> None:
        """Prepare for ``scale`` and ``bias``, float32 (4,)."""
        self._scale = scale.repeat(_ROW_PX)
        self._bias = bias.repeat(_ROW_PX)
        self._quads = torch.zeros(_BLOCK_PX * 4, dtype=torch.int8)
        self._values = torch.empty(_BLOCK_PX * 4, dtype=torch.float32)
        self._words = self._quads.numpy().view(np.uint32)
        self._block = (self._quads.view(-1, _ROW_PX * 4), self._values.view(-1, _ROW_PX * 4))

    def normalise(self, pixels: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return int8 (N, H, W, 3) pixels normalised, (N, 4, H, W) channels_last."""
        images, height, width, _ = pixels.shape
        count = images * height * width
        out = torch.empty(count * 4, dtype=dtype)
        flat = pixels.view(-1).numpy()
        # RGB becomes four bytes a pixel by copying overlapping words, ten times faster than copying
        # three bytes at a time. The fourth byte is the next pixel's red, and its scale is 0. The
        # last pixel has no byte after it, so it is copied separately.
        words = np.ndarray((count - 1,), np.uint32, flat, 0, (3,))
        blocks = (count - 1) // _BLOCK_PX
        rest = blocks * _BLOCK_PX
        block_shape = (blocks, _BLOCK_PX // _ROW_PX, _ROW_PX * 4)
        for number, block in enumerate(out[: rest * 4].view(block_shape).unbind()):
            start = number * _BLOCK_PX
            np.copyto(self._words, words[start : start + _BLOCK_PX])
            self._compute(*self._block, block)
        self._words[: count - 1 - rest] = words[rest:]
        self._quads.numpy()[(count - 1 - rest) * 4 :][:3] = flat[-3:]
        self._compute_rest(out[rest * 4 :])
        return out.view(images, height, width, 4).permute(0, 3, 1, 2)

    def _compute_rest(self, out: torch.Tensor) -> None:
        """Compute complete rows of values, then the rest of a row."""
        whole = len(out) // (_ROW_PX * 4) * (_ROW_PX * 4)
        for part in (slice(0, whole), slice(whole, len(out))):
            row = min(_ROW_PX * 4, part.stop - part.start)
            if row:
                quads, values = self._quads[part].view(-1, row), self._values[part].view(-1, row)
                self._compute(quads, values, out[part].view(-1, row))

    def _compute(self, quads: torch.Tensor, values: torch.Tensor, out: torch.Tensor) -> None:
        """Write ``quads * scale + bias`` to ``out``, all (rows, n); ``values`` is scratch."""
        scale, bias = self._scale[: out.shape[1]], self._bias[: out.shape[1]]
        values.copy_(quads)
        if out.dtype == torch.float32:
            torch.addcmul(bias, values, scale, out=out)
        else:
            torch.addcmul(bias, values, scale, out=values)
            out.copy_(values)
