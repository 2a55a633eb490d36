"""What a worker sets up before its first sample: the allocator, and a look at its libraries."""

import ctypes
import importlib.metadata
import platform
from pathlib import Path

from feeder import __version__
from feeder.errors import ResourceError

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_MIB = 1 << 20

_YMM_LOADS = (b"\xc5\xfe\x6f", b"\xc5\xfd\x6f")
"""vmovdqu and vmovdqa to a 256-bit register: common in an AVX2 build, absent from an SSE4 one."""


def tune_allocator() -> bool:
    """Keep freed picture buffers in the process instead of giving them back after every image.

    glibc serves blocks above 128 KiB with a fresh mmap each, so each resize pays for faulting its
    buffers in: 313 µs against 177 for 300² → 224² where this was measured. Returns False where the
    C library has no mallopt (musl); then everything works, slower.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return False
    return all(
        libc.mallopt(ctypes.c_int(parameter), ctypes.c_int(value)) == 1
        for parameter, value in (
            (_M_MMAP_THRESHOLD, 32 * _MIB),  # the most that glibc accepts
            (_M_TRIM_THRESHOLD, 64 * _MIB),
            (_M_TOP_PAD, 4 * _MIB),
        )
    )


def library_versions() -> dict[str, str]:
    """Return the versions of everything that shapes a batch's bytes or speed, by name."""
    import numpy as np
    import PIL
    from PIL import features

    from feeder import _native

    return {
        "feeder": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "pillow": f"{PIL.__version__} ({_pillow_flavour()})",
        "libjpeg-turbo": features.version_feature("libjpeg_turbo") or _native.LIBJPEG_TURBO_VERSION,
        "PyTurboJPEG": importlib.metadata.version("PyTurboJPEG"),
    }


def check_libraries() -> None:
    """Raise ResourceError where a library is missing or was built for another CPU."""
    try:
        import turbojpeg
        from PIL import Image
    except ImportError as error:
        raise ResourceError(
            f"the daemon's library {error.name} is not installed in this environment: run "
            "`make setup`, or install feeder[daemon]"
        ) from None
    if not hasattr(Image.Image, "__arrow_c_array__"):
        raise ResourceError(
            f"Pillow {importlib.metadata.version('pillow-simd')} is too old to lend its pixels: "
            "install pillow-simd 11.2 or later (`make setup` does)"
        )
    try:
        turbojpeg.TurboJPEG()
    except (OSError, RuntimeError) as error:
        raise ResourceError(
            f"the TurboJPEG library does not load ({error}): install libturbojpeg0 (Debian) or "
            "libturbojpeg (Ubuntu)"
        ) from None
    if pillow_has_avx2() and not cpu_has_avx2():
        raise ResourceError(
            "pillow-simd was built with AVX2, which this CPU does not have: rebuild it here with "
            "`make setup`"
        )


def pillow_has_avx2() -> bool:
    """Tell whether the installed Pillow's machine code uses AVX2; it has no flag that says so."""
    from PIL import _imaging

    code = Path(_imaging.__file__).read_bytes()
    return sum(code.count(load) for load in _YMM_LOADS) > 100


def cpu_has_avx2(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Tell whether this machine's CPU has AVX2 (x86 only; False elsewhere)."""
    try:
        return " avx2" in cpuinfo.read_text()
    except OSError:
        return False


def _pillow_flavour() -> str:
    names = {"pillow-simd", "pillow"} & {
        (dist.metadata["Name"] or "").lower() for dist in importlib.metadata.distributions()
    }
    # Both at once means that one has overwritten the other's files: the version tells which.
    simd = "pillow-simd" in names and ".post" in importlib.metadata.version("pillow-simd")
    if "pillow" in names:
        return "pillow-simd overwritten by pillow" if simd else "plain pillow"
    return "pillow-simd, AVX2" if pillow_has_avx2() else "pillow-simd, SSE4"
