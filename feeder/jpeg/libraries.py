"""Start-up of a worker: allocator settings, and checks of the libraries."""

import ctypes
import importlib.metadata
import importlib.util
import platform
from pathlib import Path

from feeder import __version__
from feeder.errors import ResourceError
from feeder.installation import explain_missing_extension, install_command
from feeder.jpeg.installed_pillow import find_pillow
from feeder.jpeg.loaded_libraries import jpeg_turbo_version, pillow_jpeg_turbo_version

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_MIB = 1 << 20

_YMM_LOADS = (b"\xc5\xfe\x6f", b"\xc5\xfd\x6f")
"""vmovdqu and vmovdqa to a 256-bit register: frequent in an AVX2 build, absent from an SSE4 one."""


def tune_allocator() -> bool:
    """Have malloc keep freed picture buffers instead of returning them to the system.

    glibc maps blocks above 128 KiB afresh, so each resize would pay the page faults of its buffers:
    313 µs against 177 for 300² → 224², measured. Returns False where the C library has no mallopt
    (musl), and images are then slower.
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
    """Return the versions of everything that affects a batch's bytes or speed, by name."""
    import numpy as np

    return {
        "feeder": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "pillow": _describe_pillow(),
        "libjpeg-turbo": jpeg_turbo_version(),
        "PyTurboJPEG": importlib.metadata.version("PyTurboJPEG"),
    }


def check_libraries() -> None:
    """Raise ResourceError if a library is missing, does not load or was built for another CPU."""
    if importlib.util.find_spec("feeder.jpeg._native") is None:
        raise ResourceError(explain_missing_extension())
    try:
        import turbojpeg
        from PIL import Image
        from PIL import __version__ as pillow_version
    except ModuleNotFoundError as error:
        raise ResourceError(
            f"the daemon's library {error.name} is not installed in this environment: "
            f"{install_command('daemon')}"
        ) from None
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise ResourceError(
            f"the daemon's libraries do not load ({reason}): install Pillow-SIMD again "
            "(`make setup` does where plain Pillow has overwritten it)"
        ) from None
    if not hasattr(Image.Image, "__arrow_c_array__"):
        raise ResourceError(
            f"Pillow {pillow_version} is too old to share its pixels (no Arrow interface): "
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
    """Whether the installed Pillow's machine code uses AVX2; Pillow has no flag for it."""
    from PIL import _imaging

    code = Path(_imaging.__file__).read_bytes()
    return sum(code.count(load) for load in _YMM_LOADS) > 100


def cpu_has_avx2(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this machine's CPU has AVX2 (x86 only; False elsewhere)."""
    try:
        return " avx2" in cpuinfo.read_text("utf-8", "replace")
    except OSError:
        return False


def library_warnings() -> tuple[str, ...]:
    """Return one line for each problem of libraries that work nevertheless.

    ``check_libraries`` reports missing ones.
    """
    try:
        return find_pillow().warnings()
    except ImportError:
        return ()


def _describe_pillow() -> str:
    pillow = find_pillow()
    if pillow.is_simd:
        flavour = "pillow-simd, AVX2" if pillow_has_avx2() else "pillow-simd, SSE4"
    else:
        flavour = "plain pillow" + (" over pillow-simd" if pillow.overwritten else "")
    own = pillow_jpeg_turbo_version()
    if own is not None and own != jpeg_turbo_version():
        flavour += f", with libjpeg-turbo {own} of its own"
    return f"{pillow.version} ({flavour})"
