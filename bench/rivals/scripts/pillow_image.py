"""A training sample by Pillow, or by Pillow-SIMD if the environment has that."""

import io

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image, features
from protocol import SIZE_PX, draw_crop

VERSIONS = {"Pillow": PIL.__version__, "libjpeg-turbo": features.version("jpg") or "?"}


def make_sample(source: str | bytes) -> NDArray[np.uint8]:
    """Decode a file or the bytes of one, crop, resize and mirror; returns (224, 224, 3)."""
    opened = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)
    image = opened if opened.mode == "RGB" else opened.convert("RGB")
    x, y, w, h = draw_crop(*image.size)
    size = (SIZE_PX, SIZE_PX)
    resized = image.resize(size, Image.Resampling.BILINEAR, box=(x, y, x + w, y + h))
    if np.random.random() < 0.5:
        resized = resized.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.array(resized)  # a copy: PyTorch accepts no read-only arrays
