"""The operations of augmentations as the plan names them: which there are, and their amounts."""

from typing import Literal, NamedTuple

Operation = Literal[
    "identity",
    "shear-x",
    "shear-y",
    "translate-x",
    "translate-y",
    "rotate",
    "brightness",
    "saturation",
    "contrast",
    "sharpness",
    "posterise",
    "solarise",
    "autocontrast",
    "equalise",
    "invert",
    "hue",
    "greyscale",
    "vertical-flip",
    "blur",
    "augmix",
]


class Blur(NamedTuple):
    """A Gaussian blur: its standard deviation and the weights of its kernel."""

    sigma: float
    """In pixels of the output."""
    weights: tuple[float, ...]
    """float32, from the centre outwards: each but the first counts on both sides."""


class Mixture(NamedTuple):
    """AugMix: a weighted sum of an image and of what chains of steps make of it."""

    own_weight: float
    chains: "tuple[tuple[float, tuple[Step, ...]], ...]"
    """The weight of each, and its steps. All weights are float32."""


Step = tuple[Operation, float | Blur | Mixture]
"""An operation and its amount: pixels, degrees, bits, level, factor, turns or source per pixel; a
Blur of blur and a Mixture of augmix, which no number describes."""
