"""What the doctor reads of this process's libraries."""

import re
import subprocess
import sys
import tomllib

import pytest

from feeder.doctor.read_machine import read_libraries
from feeder.errors import ResourceError
from feeder.installation import DAEMON_MODULES
from feeder.jpeg import libraries
from feeder.sample import self_test
from tests.support.sources import REPOSITORY

WITHOUT = "import sys; sys.modules.update(dict.fromkeys(sys.argv.pop().split())); "
"""Makes the import of the modules in the last argument fail, as if they were not installed."""


def test_this_environment_is_sound() -> None:
    found = read_libraries()
    assert {"pillow", "libjpeg-turbo", "libzmq", "PyTurboJPEG"} <= {*found.versions}
    assert (found.missing, found.problem, found.self_test_problem) == ((), "", "")
    assert found.pillow_problems == ()
    assert found.pillow_has_avx2 == libraries.cpu_has_avx2()
    assert found.decoder.startswith("own (")
    assert found.crypto == "libsodium", "pyzmq's wheels have it"


def test_all_libraries_of_the_daemon_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    needed = project["dependencies"] + project["optional-dependencies"]["daemon"]
    assert [*DAEMON_MODULES] == [re.split("[<>=]", line)[0] for line in needed]
    for name, module in DAEMON_MODULES.items():  # each that is missing is named
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            assert read_libraries().missing == (name,)


def test_the_report_needs_none_of_them() -> None:
    code = f"{WITHOUT}from feeder.__main__ import start; sys.exit(start())"
    result = subprocess.run(
        [sys.executable, "-c", code, "doctor", " ".join(DAEMON_MODULES.values())],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (1, "")
    assert "1. error: these libraries are not installed in this environment: numpy, " in (
        result.stdout
    )
    assert "  memory        " in result.stdout


def test_what_fails_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ResourceError("it is broken: mend it")

    def damage() -> None:
        raise ImportError("xxhash: undefined symbol:\nXXH3 " + "x" * 1000)

    with monkeypatch.context() as patch:
        patch.setattr(self_test, "compute_self_test", refuse)
        assert read_libraries().self_test_problem == "it is broken: mend it"
    monkeypatch.setattr(libraries, "check_libraries", refuse)
    assert read_libraries().problem == "it is broken: mend it"
    monkeypatch.setattr(libraries, "check_libraries", damage)
    problem = read_libraries().problem
    assert problem.startswith("a library does not load (xxhash: undefined symbol: XXH3 x")
    assert len(problem) < 300
