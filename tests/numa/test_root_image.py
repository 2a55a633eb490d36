"""The guests' root has the files that they need, checked without booting one."""

from tests.numa.root_image import RootImage, python_and_daemon
from tests.support.sources import REPOSITORY


def test_root_has_the_files_that_the_guests_run() -> None:
    image = RootImage()
    python_and_daemon(image, REPOSITORY)
    for name in ("feeder/node/__main__.py", "tests/support/wire_client.py", "tests/numa/daemon.py"):
        assert str(REPOSITORY / name) in image._sources
