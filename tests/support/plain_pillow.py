"""Broken environments of the daemon, in folders that take precedence over the real one."""

import base64
import hashlib
import re
import shutil
from pathlib import Path

import PIL
from PIL import _imaging

WITHOUT_CODECS = """
import sys
try:
    from PIL import _imaging
except ImportError:
    pass
else:
    del _imaging.libtiff_decoder, _imaging.libtiff_encoder
    sys.modules["PIL._webp"] = None
"""
"""A sitecustomize that imitates a Pillow built without libtiff and libwebp."""


def put_plain_pillow(folder: Path, version: str, jpeg_turbo: str | None = None) -> dict[str, str]:
    """Write the files of a plain Pillow, as from pip; return the environment that imports it first.

    Its code is that of the installed one. With ``jpeg_turbo`` it bundles a libjpeg-turbo of that
    version under another file name, as Pillow's wheels do.
    """
    package = folder / "PIL"
    shutil.copytree(
        Path(PIL.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    version_file = package / "_version.py"
    text = re.sub(r"(?m)^__version__ = .*", f'__version__ = "{version}"', version_file.read_text())
    assert version in text
    version_file.write_text(text)
    environment = {"PYTHONPATH": str(folder)}
    extension = package / Path(_imaging.__file__).name
    content = extension.read_bytes()
    built_for, wanted = PIL.__version__.encode() + b"\0", version.encode() + b"\0"
    assert built_for in content
    extension.write_bytes(content.replace(built_for, wanted.ljust(len(built_for), b"\0")))
    if jpeg_turbo is not None:
        _alter(mapped_file("libjpeg.so.62"), folder / "libjpeg.so.99", jpeg_turbo, b"libjpeg.so.99")
        content = extension.read_bytes()
        assert b"libjpeg.so.62\0" in content
        extension.write_bytes(content.replace(b"libjpeg.so.62\0", b"libjpeg.so.99\0"))
        environment["LD_LIBRARY_PATH"] = str(folder)
    metadata = folder / f"pillow-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.4\nName: pillow\nVersion: {version}\n")
    content = extension.read_bytes()
    checksum = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    record = f"PIL/{extension.name},sha256={checksum},{len(content)}\n"
    (metadata / "RECORD").write_text(record)
    return environment


def _alter(source: Path, copy: Path, version: str, soname: bytes | None = None) -> None:
    content = source.read_bytes()
    found = re.search(rb"libjpeg-turbo version ([0-9.]+)", content)
    assert found is not None
    assert len(found[1]) == len(version)
    content = content.replace(found[0], b"libjpeg-turbo version " + version.encode())
    if soname is not None:
        content = content.replace(b"libjpeg.so.62\0", soname + b"\0")
    copy.write_bytes(content)


def mapped_file(name: str) -> Path:
    """Return the file of a library that this process has loaded; its name starts with ``name``."""
    from feeder.jpeg import _native  # loads both

    assert _native.LIBJPEG_ADDRESS
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if Path(path).name.startswith(name):
            return Path(path)
    raise AssertionError(f"{name} is not loaded")
