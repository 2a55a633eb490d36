"""Workers check their libraries before their first sample."""

import sys
from pathlib import Path

import pytest

from feeder import runtime
from feeder.errors import ResourceError
from feeder.python_process import single_thread_environment


def test_versions_name_everything_that_shapes_bytes() -> None:
    versions = runtime.library_versions()
    assert set(versions) >= {"feeder", "python", "numpy", "pillow", "libjpeg-turbo", "PyTurboJPEG"}
    assert "pillow-simd" in versions["pillow"]
    assert ("AVX2" in versions["pillow"]) == runtime.pillow_has_avx2()


def test_this_environment_is_fit() -> None:
    runtime.check_libraries()


def test_missing_library_is_one_line_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "turbojpeg", None)
    with pytest.raises(ResourceError, match=r"turbojpeg is not installed.*make setup"):
        runtime.check_libraries()


def test_build_for_another_cpu_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("flags : fpu sse4_2\n")
    assert not runtime.cpu_has_avx2(tmp_path / "cpuinfo")
    assert not runtime.cpu_has_avx2(tmp_path / "missing")
    monkeypatch.setattr(runtime, "cpu_has_avx2", lambda: False)
    monkeypatch.setattr(runtime, "pillow_has_avx2", lambda: True)
    with pytest.raises(ResourceError, match=r"AVX2.*make setup"):
        runtime.check_libraries()


def test_allocator_keeps_picture_buffers() -> None:
    assert runtime.tune_allocator() in (True, False)
    assert set(single_thread_environment().values()) == {"1"}
