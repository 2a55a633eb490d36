"""What goes into the guests' root is there: a move of files shows before a guest is booted."""

from tests.numa.root_image import RootImage, python_and_daemon
from tests.support.sources import REPOSITORY


def test_all_that_the_guests_need_is_there() -> None:
    image = RootImage()
    python_and_daemon(image, REPOSITORY)
    for name in ("feeder/node/__main__.py", "tests/support/wire_client.py", "tests/numa/daemon.py"):
        assert str(REPOSITORY / name) in image._sources
