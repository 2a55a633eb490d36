"""The contenders of ``feeder-bench peers``: script, environment and choices of quality of each.

An environment is a virtual environment in ``.peers/NAME`` that ``make peers`` makes; our own
contenders run in the bench's Python. The choices are the rivals' defaults unless the name differs;
the table shows them because a loader may be faster by doing less.
"""

import sys
from pathlib import Path
from typing import Final, NamedTuple

SCRIPTS: Final = Path(__file__).parent / "scripts"
DEFAULT_FOLDER: Final = Path(__file__).parents[2] / ".peers"  # where ``make peers`` puts them


class Environment(NamedTuple):
    check: str  # modules that must import for it to count as installed
    steps: tuple[tuple[str, ...], ...]  # arguments of ``pip install``, step by step
    system_packages: tuple[str, ...] = ()  # Debian packages that it needs to build or run
    compiler: str | None = None  # CC of its installation


_TORCH: Final = "torch==2.13.0"  # as in the Makefile; where only its DataLoader is used
_HAS_AVX2 = "avx2" in Path("/proc/cpuinfo").read_text("utf-8", "replace").split()

ENVIRONMENTS: Final = {
    "tensorflow": Environment("tensorflow", (("tensorflow-cpu",),)),
    "dali": Environment("nvidia.dali", (("nvidia-dali-cuda120",),)),
    # Unpinned: torchvision's wheel needs the CUDA libraries of its own torch wheel.
    "torchvision": Environment("torchvision.io, torch, PIL", (("torchvision",),)),
    "ffcv": Environment(
        "ffcv, ffcv.loader",
        # Built by the environment's own setuptools, which must still have pkg_resources.
        (
            ("setuptools<80", "wheel", "numpy"),
            ("--no-build-isolation", "ffcv", _TORCH, "pillow"),
        ),
        ("g++", "pkg-config", "libopencv-dev", "libturbojpeg0-dev"),
    ),
    "pillow-simd": Environment(
        "torch, PIL.Image",
        (("--no-cache-dir", "--no-binary", "pillow-simd", "pillow-simd"), (_TORCH, "numpy")),
        ("gcc", "libjpeg-dev", "zlib1g-dev"),
        compiler="cc -mavx2" if _HAS_AVX2 else "cc",
    ),
    "spdl": Environment("spdl.io", (("spdl", "numpy"),), ("ffmpeg",)),
    "grain": Environment("grain, PIL", (("grain", "pillow"),)),
    "webdataset": Environment("webdataset, torch", (("webdataset", _TORCH, "pillow"),)),
    "streaming": Environment("streaming, torch", (("mosaicml-streaming", "pillow"),)),
}


def interpreter(environment: str | None, folder: Path) -> str:
    """Return the Python of an environment in ``folder``, or the bench's."""
    return str(folder / environment / "bin" / "python") if environment else sys.executable


class Quality(NamedTuple):
    resize: str
    decodes: str
    idct: str = "accurate"
    chroma: str = "fancy"
    source: str = "original"
    """The bytes that it decodes: the original JPEG's, or coefficients re-coded or re-quantised."""


class Contender(NamedTuple):
    name: str
    words: str  # what sentences and the picture call it
    script: str | Path  # in SCRIPTS
    environment: str | None  # None is the Python that the bench runs in: the contender is ours
    quality: Quality
    variant: str = ""
    all_cores: bool = True

    @property
    def antialiased(self) -> bool:
        """Whether it resizes as we do: bilinear, with the filter widened when shrinking."""
        return self.quality.resize == _ANTIALIASED


_ANTIALIASED = "bilinear, antialiased"
_PLAIN = "bilinear, plain"
_WHOLE = "the whole image"
_REGION = "the crop's rows and columns, entropy-decodes all before its end"
_TILES = "the crop's tiles, at 1/2 (1/4, 1/8) size for crops of twice the output size"

_OURS = Quality(_ANTIALIASED, _TILES, source="re-coded without loss")
_PILLOW = Quality(_ANTIALIASED, _WHOLE)
_TF = Quality(_PLAIN, _REGION, idct="fast")
_TF_AA = _TF._replace(resize=_ANTIALIASED)
_DALI = Quality(_PLAIN, _REGION)
_DALI_AA = _DALI._replace(resize=_ANTIALIASED)
_FFCV = Quality("area when shrinking, bilinear otherwise", _WHOLE, idct="fast")
_FFCV_LOSSY = _FFCV._replace(source="re-encoded at quality 90, lossy")
_FFMPEG = Quality(_ANTIALIASED, _WHOLE, idct="FFmpeg's", chroma="swscale's")


def _rival(
    name: str, words: str, script: str, environment: str, quality: Quality, variant: str = ""
) -> Contender:
    script = f"{script}_loader.py"
    return Contender(f"peers/{name}", words, script, environment, quality, variant)


CONTENDERS: Final = (
    # A single process; on all cores the daemon is our contender.
    Contender("peers/feeder", "Feeder", "ours.py", None, _OURS, "reader", all_cores=False),
    Contender("peers/feeder-daemon", "Feeder's daemon", "ours.py", None, _OURS, "daemon"),
    _rival("tfdata", "tf.data", "tfdata", "tensorflow", _TF),
    _rival("tfdata-antialias", "tf.data, antialiased", "tfdata", "tensorflow", _TF_AA, "antialias"),
    _rival("tfdata-service", "tf.data service", "tfdata", "tensorflow", _TF, "service"),
    _rival("ffcv", "FFCV", "ffcv", "ffcv", _FFCV, "original"),
    _rival(
        "ffcv-reencoded", "FFCV, re-encoded with loss", "ffcv", "ffcv", _FFCV_LOSSY, "reencoded"
    ),
    _rival("dali", "DALI", "dali", "dali", _DALI),
    _rival("dali-antialias", "DALI, antialiased", "dali", "dali", _DALI_AA, "antialias"),
    _rival("torchvision", "PyTorch, torchvision", "torch", "torchvision", _PILLOW, "torchvision"),
    _rival("pillow", "PyTorch, Pillow", "torch", "torchvision", _PILLOW, "pillow"),
    _rival("pillow-simd", "PyTorch, Pillow-SIMD", "torch", "pillow-simd", _PILLOW, "pillow"),
    _rival("spdl", "SPDL", "spdl", "spdl", _FFMPEG),
    _rival("streaming", "MosaicML Streaming", "torch", "streaming", _PILLOW, "streaming"),
    _rival("webdataset", "WebDataset", "torch", "webdataset", _PILLOW, "webdataset"),
    _rival("grain", "Grain", "grain", "grain", _PILLOW),
)
