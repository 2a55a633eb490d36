"""What the doctor reads of this process's libraries."""

import pytest

from feeder.doctor.read_libraries import read_libraries
from feeder.errors import ResourceError
from feeder.jpeg import libraries
from feeder.sample import self_test


def test_this_environment_is_sound() -> None:
    found = read_libraries()
    assert {"pillow", "libjpeg-turbo", "libzmq", "PyTurboJPEG"} <= {*found.versions}
    assert (found.problem, found.self_test_problem, found.pillow_problems) == ("", "", ())
    assert found.pillow_has_avx2 == libraries.cpu_has_avx2()
    assert found.decoder.startswith("own (")
    assert found.crypto == "libsodium", "pyzmq's wheels have it"


def fail(*_: object) -> None:
    raise ResourceError("it is broken: mend it")


def test_a_library_that_does_not_load_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "check_libraries", fail)
    assert read_libraries().problem == "it is broken: mend it"


def test_a_failed_self_test_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "compute_self_test", fail)
    assert read_libraries().self_test_problem == "it is broken: mend it"
