"""The contenders of ``feeder-bench peers``: script, environment and choices of quality of each.

An environment is a virtual environment in ``.peers/NAME`` that ``make peers`` makes; our own
contenders run in the bench's Python. The choices are the rivals' defaults unless the name differs;
the table shows them because a loader may be faster by doing less.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

SCRIPTS: Final = Path(__file__).parent / "scripts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A virtual environment and its installation."""

    name: str
    steps: tuple[tuple[str, ...], ...]
    """Arguments of ``pip install``, step by step."""
    check: str
    """Modules that must import for it to count as installed."""
    system_packages: tuple[str, ...] = ()
    """Debian packages that it needs to build or run."""
    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables for its installation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How a contender makes its pixels."""

    resize: str
    decodes: str
    idct: str = "accurate"
    chroma: str = "fancy"
    source: str = "original"
    """The bytes that it decodes: the original JPEG's, or coefficients re-coded or re-quantised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One row of the table."""

    name: str
    words: str
    """What sentences and the picture call it."""
    script: Path
    quality: Quality
    environment: str | None = None
    """None is the Python that the bench runs in."""
    variant: str = ""
    works_ahead: bool = True
    """It works on after it has delivered, so it is stopped during the turns of others."""
    all_cores: bool = True

    @property
    def antialiased(self) -> bool:
        """Whether it resizes as we do: bilinear, with the filter widened when shrinking."""
        return self.quality.resize == _ANTIALIASED


def default_folder() -> Path:
    """Return where ``make peers`` puts the environments."""
    return Path(__file__).parents[2] / ".peers"


_TORCH: Final = "torch==2.13.0"  # as in the Makefile; where only its DataLoader is used
_SIMD_FLAG = (
    "-mavx2" if "avx2" in Path("/proc/cpuinfo").read_text("utf-8", "replace").split() else ""
)

ENVIRONMENTS: Final = {
    environment.name: environment
    for environment in (
        Environment(name="tensorflow", steps=(("tensorflow-cpu",),), check="tensorflow"),
        Environment(name="dali", steps=(("nvidia-dali-cuda120",),), check="nvidia.dali"),
        # Unpinned: torchvision's wheel needs the CUDA libraries of its own torch wheel.
        Environment(
            name="torchvision",
            steps=(("torchvision",),),
            check="torchvision.io, torch, PIL",
        ),
        Environment(
            name="ffcv",
            # Built by the environment's own setuptools, which must still have pkg_resources.
            steps=(
                ("setuptools<80", "wheel", "numpy"),
                ("--no-build-isolation", "ffcv", _TORCH, "pillow"),
            ),
            check="ffcv, ffcv.loader",
            system_packages=("g++", "pkg-config", "libopencv-dev", "libturbojpeg0-dev"),
        ),
        Environment(
            name="pillow-simd",
            steps=(
                ("--no-cache-dir", "--no-binary", "pillow-simd", "pillow-simd"),
                (_TORCH, "numpy"),
            ),
            check="torch, PIL.Image",
            system_packages=("gcc", "libjpeg-dev", "zlib1g-dev"),
            variables=(("CC", f"cc {_SIMD_FLAG}".strip()),),
        ),
        Environment(
            name="spdl", steps=(("spdl", "numpy"),), check="spdl.io", system_packages=("ffmpeg",)
        ),
        Environment(name="grain", steps=(("grain", "pillow"),), check="grain, PIL"),
        Environment(
            name="webdataset", steps=(("webdataset", _TORCH, "pillow"),), check="webdataset, torch"
        ),
        Environment(
            name="streaming", steps=(("mosaicml-streaming", "pillow"),), check="streaming, torch"
        ),
    )
}

_ANTIALIASED = "bilinear, antialiased"
_PLAIN = "bilinear, plain"
_WHOLE = "the whole image"
_REGION = "the crop's rows and columns, entropy-decodes all before its end"
_PILLOW = Quality(resize=_ANTIALIASED, decodes=_WHOLE)
_OURS = Quality(
    resize=_ANTIALIASED,
    decodes="the crop's tiles, at 1/2 (1/4, 1/8) size for crops of twice the output size",
    source="re-coded without loss",
)


def _rival(
    name: str, words: str, script: str, environment: str, quality: Quality, variant: str = ""
) -> Contender:
    return Contender(
        name=f"peers/{name}",
        words=words,
        script=SCRIPTS / f"{script}_loader.py",
        environment=environment,
        quality=quality,
        variant=variant,
    )


def _ours(name: str, words: str, variant: str, *, all_cores: bool) -> Contender:
    return Contender(
        name=f"peers/{name}",
        words=words,
        script=SCRIPTS / "ours.py",
        quality=_OURS,
        variant=variant,
        works_ahead=False,
        all_cores=all_cores,
    )


_TF = Quality(resize=_PLAIN, decodes=_REGION, idct="fast")
_TF_AA = replace(_TF, resize=_ANTIALIASED)
_DALI = Quality(resize=_PLAIN, decodes=_REGION)
_DALI_AA = replace(_DALI, resize=_ANTIALIASED)
_FFCV = Quality(resize="area when shrinking, bilinear otherwise", decodes=_WHOLE, idct="fast")
_FFCV_LOSSY = replace(_FFCV, source="re-encoded at quality 90, lossy")
_FFMPEG = Quality(resize=_ANTIALIASED, decodes=_WHOLE, idct="FFmpeg's", chroma="swscale's")

CONTENDERS: Final = (
    # A single process; on all cores the daemon is our contender.
    _ours("feeder", "Feeder", "reader", all_cores=False),
    _ours("feeder-daemon", "Feeder's daemon", "daemon", all_cores=True),
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


_NOT_THEIRS: Final = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""With these a rival's Python would find our packages."""


def interpreter(contender: Contender, folder: Path, ours: str) -> Path:
    """Return the Python that runs a contender's script."""
    if contender.environment is None:
        return Path(ours)
    return folder / contender.environment / "bin" / "python"


def variables(cores: int) -> dict[str, str]:
    """Return a contender's environment variables: no more threads than cores."""
    pools = ("OMP", "MKL", "OPENBLAS", "NUMBA", "NUMEXPR")
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_THEIRS}
    return kept | {
        **{f"{pool}_NUM_THREADS": str(cores) for pool in pools},
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
