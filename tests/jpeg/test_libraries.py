"""Workers check their libraries before their first sample and report the versions they have."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import PIL
import pytest
from PIL import _imaging

from feeder.errors import ResourceError
from feeder.jpeg import _native, libraries
from tests.support.daemon import Daemon, pack_small, run_status
from tests.support.sources import REPOSITORY, encoded, image, run_feeder

_REPORT = (
    "import json; from feeder.jpeg import libraries; "
    "print(json.dumps([libraries.library_versions(), libraries.library_warnings()]))"
)


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
        own = _loaded_libjpeg().read_bytes()
        found = re.search(rb"libjpeg-turbo version ([0-9.]+)", own)
        assert found is not None
        assert len(found[1]) == len(jpeg_turbo)
        own = own.replace(found[0], b"libjpeg-turbo version " + jpeg_turbo.encode())
        own = own.replace(b"libjpeg.so.62\0", b"libjpeg.so.99\0")
        (folder / "libjpeg.so.99").write_bytes(own)
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


def _loaded_libjpeg() -> Path:
    """The file of the library that this process has loaded."""
    assert _native.LIBJPEG_ADDRESS
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path(line.split(maxsplit=5)[-1])
        if path.name.startswith("libjpeg.so.62"):
            return path
    raise AssertionError("libjpeg is not loaded")


def look_at(environment: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the versions and the warnings of a process with that environment."""
    output = subprocess.run(
        [sys.executable, "-c", _REPORT],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    versions, warnings = json.loads(output)
    return versions, warnings


def test_versions_name_everything_that_shapes_bytes() -> None:
    versions = libraries.library_versions()
    assert set(versions) >= {"feeder", "python", "numpy", "pillow", "libjpeg-turbo", "PyTurboJPEG"}
    assert "pillow-simd" in versions["pillow"]
    flags = Path("/proc/cpuinfo").read_text().split()
    assert ("AVX2" in versions["pillow"]) == ("avx2" in flags), "`make setup` builds for this CPU"


def test_missing_library_is_reported_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    libraries.check_libraries()
    monkeypatch.setitem(sys.modules, "turbojpeg", None)
    with pytest.raises(ResourceError, match=r"turbojpeg is not installed.*: pip install "):
        libraries.check_libraries()
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert libraries.library_warnings() == ()


def test_pillow_built_for_another_cpu_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cpuinfo").write_text("flags : fpu sse4_2\n")
    assert not libraries.cpu_has_avx2(tmp_path / "cpuinfo")
    assert not libraries.cpu_has_avx2(tmp_path / "missing")
    monkeypatch.setattr(libraries, "cpu_has_avx2", lambda: False)
    monkeypatch.setattr(libraries, "pillow_has_avx2", lambda: True)
    with pytest.raises(ResourceError, match=r"AVX2.*make setup"):
        libraries.check_libraries()


def test_allocator_keeps_picture_buffers() -> None:
    """Three pictures a round are more than glibc keeps on its own."""
    code = (
        "import resource, sys, numpy\n"
        "from feeder.jpeg.libraries import tune_allocator\n"
        "assert sys.argv[1] == 'as it is' or tune_allocator()\n"
        "for _ in range(10):\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    pictures = [numpy.ones(8 << 20, numpy.uint8) for _ in range(3)]\n"
        "    del pictures\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
    )
    faults = {
        how: int(subprocess.check_output([sys.executable, "-c", code, how], cwd=REPOSITORY))
        for how in ("as it is", "tuned")
    }
    assert 10 * faults["tuned"] < faults["as it is"]


def own_version() -> str:
    return libraries.library_versions()["libjpeg-turbo"]


def other_version() -> str:
    """A version that no libjpeg-turbo has, as long as the one here."""
    return "9.87654321"[: len(own_version())]


@pytest.mark.parametrize("gone", ["", "PIL", "pillow-*"])
def test_plain_pillow_over_pillow_simd_is_reported(gone: str, tmp_path: Path) -> None:
    """Without metadata, too; not where only pip still lists it, and Pillow-SIMD is restored."""
    environment = put_plain_pillow(tmp_path, "13.0.0")
    for path in tmp_path.glob(gone) if gone else ():
        path.rename(tmp_path / "elsewhere")
    versions, warnings = look_at(environment)
    assert versions["libjpeg-turbo"] == own_version()
    if gone == "PIL":
        assert "pillow-simd" in versions["pillow"]
        assert not warnings
        return
    assert versions["pillow"] == "13.0.0 (plain pillow over pillow-simd)"
    (warning,) = warnings
    assert warning.startswith("plain Pillow 13.0.0 has overwritten Pillow-SIMD ")
    assert "`make setup`" in warning


def test_daemon_warns_once_and_reports_the_loaded_versions(tmp_path: Path) -> None:
    packed = pack_small(tmp_path)
    own = other_version()
    environment = put_plain_pillow(tmp_path / "site", "13.0.0", jpeg_turbo=own)
    arguments = ("--data", f"d={packed}", "--bind", "tcp://127.0.0.1:0", "--workers", "2")
    with Daemon(*arguments, environ=environment) as daemon:
        (warning,) = (line for line in daemon.lines if "Pillow-SIMD" in line)
        assert warning.startswith("feeder: warning: plain Pillow 13.0.0")
        assert re.search(rf"libjpeg-turbo {re.escape(own_version())}[,\n]", daemon.ready)
        assert f"with libjpeg-turbo {own} of its own" in daemon.ready
        counters = daemon.counters()
        assert counters["library_warnings"] == 1
        assert counters["library.libjpeg-turbo"] == own_version()
        shown = run_status(daemon.endpoint)
        assert f"with libjpeg-turbo {own} of its own" in shown["library.pillow"]
    with Daemon(*arguments) as daemon:
        assert not [line for line in daemon.lines if "warning" in line and "Pillow" in line]
        assert daemon.counters()["library_warnings"] == 0


def test_packing_without_libtiff_and_libwebp_warns_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source" / "class"
    source.mkdir(parents=True)
    (source / "a.tif").write_bytes(encoded(image(), "TIFF", compression="tiff_lzw"))
    (source / "b.webp").write_bytes(encoded(image(), "WEBP"))
    (source / "c.tif").write_bytes(encoded(image(), "TIFF"))
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(WITHOUT_CODECS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    result = run_feeder("pack", tmp_path / "source", tmp_path / "packed", "--max-bad", "2")
    assert result.returncode == 0
    (warning,) = (line for line in result.stderr.splitlines() if "warning" in line)
    assert warning.startswith(
        "feeder: warning: this Pillow was built without libtiff and libwebp: "
    )
    lines = (tmp_path / "packed" / "quarantine.jsonl").read_text().splitlines()
    reasons = {entry["path"]: entry["reason"] for entry in map(json.loads, lines)}
    assert set(reasons) == {"class/a.tif", "class/b.webp"}
    assert "without libtiff: install libtiff-dev" in reasons["class/a.tif"]
    assert "without libwebp: install libwebp-dev" in reasons["class/b.webp"]
    assert all("`make setup`" in reason for reason in reasons.values())
