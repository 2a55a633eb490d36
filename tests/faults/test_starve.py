"""What `make test-starved` makes of pytest's exit status."""

import os
import subprocess
import sys

import pytest

from tests.support.sources import REPOSITORY

_NOT_INHERITED = ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER")


@pytest.mark.extensive("a test tool: make test-starved")
@pytest.mark.parametrize(
    ("tests", "status"),
    [
        (("tests/test_api_page.py", "-k", "nothing"), pytest.ExitCode.NO_TESTS_COLLECTED),
        (("tests/process/test_parent_death.py",), pytest.ExitCode.OK),
    ],
)
def test_the_status_is_that_of_pytest(tests: tuple[str, ...], status: int) -> None:
    command = [sys.executable, "-m", "tests.support.starve", "--busy-loops", "0", "--seed", "1"]
    environ = {name: text for name, text in os.environ.items() if name not in _NOT_INHERITED}
    options = ("-q", "-p", "no:cacheprovider", *tests)
    assert subprocess.run([*command, *options], cwd=REPOSITORY, env=environ).returncode == status
