"""The contenders of ``feeder-bench peers``: script, environment and choices of quality of each.

An environment is a virtual environment in ``.peers/NAME`` that ``make peers`` makes; our own
contenders run in the bench's Python. The choices are the rivals' defaults unless the name differs;
the table shows them because a loader may be faster by doing less.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SCRIPTS: Final = Path(__file__).parent / "scripts"
OURS: Final = "feeder"


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

    def describe(self) -> str:
        """Return it in one line."""
        return (
            f"{self.resize}; decodes {self.decodes}; IDCT {self.idct}; chroma {self.chroma}; "
            f"{self.source}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One row of the table."""

    name: str
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


def _rival(name: str, script: str, environment: str, quality: Quality, variant: str) -> Contender:
    return Contender(
        name=f"peers/{name}",
        script=SCRIPTS / f"{script}.py",
        environment=environment,
        quality=quality,
        variant=variant,
    )


_TF = Quality(resize=_PLAIN, decodes=_REGION, idct="fast")
_TF_AA = Quality(resize=_ANTIALIASED, decodes=_REGION, idct="fast")
_DALI = Quality(resize=_PLAIN, decodes=_REGION)
_DALI_AA = Quality(resize=_ANTIALIASED, decodes=_REGION)
_FFCV = Quality(resize="area when shrinking, bilinear otherwise", decodes=_WHOLE, idct="fast")
_FFCV_LOSSY = Quality(
    resize=_FFCV.resize, decodes=_WHOLE, idct="fast", source="re-encoded at quality 90, lossy"
)
_FFMPEG = Quality(resize=_ANTIALIASED, decodes=_WHOLE, idct="FFmpeg's", chroma="swscale's")

CONTENDERS: Final = (
    Contender(
        name="peers/feeder",
        script=SCRIPTS / "feeder_reader.py",
        quality=_OURS,
        works_ahead=False,
        all_cores=False,  # a single process; on all cores the daemon is our contender
    ),
    Contender(
        name="peers/feeder-daemon",
        script=SCRIPTS / "feeder_daemon.py",
        quality=_OURS,
        works_ahead=False,
    ),
    _rival("tfdata", "tfdata_loader", "tensorflow", _TF, ""),
    _rival("tfdata-antialias", "tfdata_loader", "tensorflow", _TF_AA, "antialias"),
    _rival("tfdata-service", "tfdata_loader", "tensorflow", _TF, "service"),
    _rival("ffcv", "ffcv_loader", "ffcv", _FFCV, "original"),
    _rival("ffcv-reencoded", "ffcv_loader", "ffcv", _FFCV_LOSSY, "reencoded"),
    _rival("dali", "dali_loader", "dali", _DALI, ""),
    _rival("dali-antialias", "dali_loader", "dali", _DALI_AA, "antialias"),
    _rival("torchvision", "torch_loader", "torchvision", _PILLOW, "torchvision"),
    _rival("pillow", "torch_loader", "torchvision", _PILLOW, "pillow"),
    _rival("pillow-simd", "torch_loader", "pillow-simd", _PILLOW, "pillow"),
    _rival("spdl", "spdl_loader", "spdl", _FFMPEG, ""),
    _rival("streaming", "streaming_loader", "streaming", _PILLOW, ""),
    _rival("webdataset", "webdataset_loader", "webdataset", _PILLOW, ""),
    _rival("grain", "grain_loader", "grain", _PILLOW, ""),
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
