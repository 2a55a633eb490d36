"""Which Pillow is installed, and which source formats it cannot read.

Pillow-SIMD and plain Pillow both own the package ``PIL``, and pip lets one overwrite the files of
the other: installing anything that needs Pillow (matplotlib, torchvision) overwrites Pillow-SIMD.
pip then lists both. The checksum that it recorded for the extension module shows which one's files
are there.

Only PIL's extension module is imported, so that a node process can afford the check.
"""

import base64
import hashlib
import importlib.metadata
import importlib.util
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path
from typing import Final

_FORMATS: Final = {"libtiff": "compressed TIFFs", "libwebp": "WebP images"}
"""By optional library of Pillow: the source files that need it."""

_HEADER_PACKAGES: Final = {"libtiff": "libtiff-dev", "libwebp": "libwebp-dev"}
"""By the same libraries: the system package with the headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledPillow:
    """The Pillow that ``import PIL`` finds."""

    version: str
    is_simd: bool
    overwritten: str
    """Version of the Pillow-SIMD that plain Pillow has overwritten; empty if none."""
    missing: tuple[str, ...]
    """Optional libraries that it was built without."""

    def warnings(self) -> tuple[str, ...]:
        """Return one line for each problem, with its remedy."""
        lines: list[str] = []
        if not self.is_simd:
            found = f"plain Pillow {self.version} is installed in place of Pillow-SIMD"
            if self.overwritten:
                found = (
                    f"plain Pillow {self.version} has overwritten Pillow-SIMD {self.overwritten}, "
                    "as installing a package that needs Pillow does"
                )
            lines.append(
                f"{found}: augmenting and packing are slower and can give different bytes; run "
                "`make setup`, which puts Pillow-SIMD back, and keep what needs Pillow in another "
                "environment"
            )
        if self.missing:
            formats = " and ".join(_FORMATS[name] for name in self.missing)
            lines.append(
                f"this Pillow was built without {' and '.join(self.missing)}: packing quarantines "
                f"{formats}; {remedy_for(*self.missing)}"
            )
        return tuple(lines)


def remedy_for(*missing: str) -> str:
    """Return how to get a Pillow with the libraries ``missing``."""
    headers = " and ".join(_HEADER_PACKAGES[name] for name in missing)
    return f"install {headers} and build pillow-simd again (`make setup` does both)"


def find_pillow() -> InstalledPillow:
    """Inspect the Pillow of this process; ImportError if there is none."""
    import PIL
    from PIL import _imaging

    simd = _find_distribution("pillow-simd")
    extension = Path(_imaging.__file__)
    if simd is not None and _has_installed(simd, extension):
        is_simd = True
    elif (plain := _find_distribution("pillow")) is not None and _has_installed(plain, extension):
        is_simd = False
    else:  # installed without records; Pillow-SIMD marks its versions, Pillow does not
        is_simd = ".post" in PIL.__version__
    return InstalledPillow(
        version=PIL.__version__,
        is_simd=is_simd,
        overwritten="" if is_simd or simd is None else simd.version,
        missing=missing_libraries(),
    )


def missing_libraries() -> tuple[str, ...]:
    """Return the optional libraries that Pillow was built without."""
    from PIL import _imaging

    has = {
        "libtiff": hasattr(_imaging, "libtiff_decoder"),
        "libwebp": importlib.util.find_spec("PIL._webp") is not None,
    }
    return tuple(name for name in _FORMATS if not has[name])


def _find_distribution(name: str) -> Distribution | None:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _has_installed(distribution: Distribution, file: Path) -> bool:
    """Whether pip installed ``file`` for a distribution, by path and checksum."""
    for entry in distribution.files or ():
        if entry.name == file.name and entry.hash is not None:
            digest = hashlib.new(entry.hash.mode, file.read_bytes()).digest()
            checksum = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            return (
                entry.hash.value == checksum
                and Path(str(entry.locate())).resolve() == file.resolve()
            )
    return False
