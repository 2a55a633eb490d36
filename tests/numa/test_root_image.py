"""The guests' root has the files that they need, checked without booting one."""

import sys

from tests.numa.root_image import PROJECT, RootImage, python_and_daemon
from tests.support.sources import REPOSITORY


def test_root_has_the_files_that_the_guests_run() -> None:
    image = RootImage()
    python_and_daemon(image, REPOSITORY)
    for name in ("feeder/node/__main__.py", "tests/support/raw_client.py", "tests/numa/daemon.py"):
        assert f"{PROJECT}/{name}" in image._sources
    here = (str(REPOSITORY), sys.prefix)
    assert not [path for path in image._sources if path.startswith(here)], "wherever it is"
