"""A training sample by Pillow, or by Pillow-SIMD if the environment has that."""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from protocol import SIZE_PX, draw_crop


def make_sample(source: str | bytes) -> NDArray[np.uint8]:
    """Decode a file or the bytes of one, crop, resize and mirror; returns (224, 224, 3)."""
    opened = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)
    return augment(opened if opened.mode == "RGB" else opened.convert("RGB"))


def augment(image: Image.Image) -> NDArray[np.uint8]:
    """Crop, resize and mirror a picture as training does."""
    x, y, w, h = draw_crop(*image.size)
    size = (SIZE_PX, SIZE_PX)
    resized = image.resize(size, Image.Resampling.BILINEAR, box=(x, y, x + w, y + h))
    if np.random.random() < 0.5:
        resized = resized.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.array(resized)  # a copy: PyTorch accepts no read-only arrays


def versions() -> dict[str, str]:
    """Return the versions of Pillow and its libjpeg-turbo."""
    import PIL
    from PIL import features

    return {"Pillow": PIL.__version__, "libjpeg-turbo": features.version("jpg") or "?"}
