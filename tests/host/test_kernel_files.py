"""Tables of mounts as the kernel writes them, and as it does not."""

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.host.kernel_files import Mount, parse_mounts


def test_all_fields_are_read() -> None:
    table = (
        "36 35 0:29 /docker/a1 /sys/fs/cgroup/cpu rw,nosuid shared:9 master:2 - cgroup none rw,cpu"
    )
    assert [*parse_mounts(table)] == [
        Mount(
            root="/docker/a1",
            point=PurePosixPath("/sys/fs/cgroup/cpu"),
            kind="cgroup",
            source="none",
            options=("rw", "cpu"),
        )
    ]


def test_escaped_characters_and_empty_sources() -> None:
    table = (
        "20 1 8:1 / /my\\040sets\\011 rw - tmpfs  rw\n21 1 8:2 / /a\x0cb rw - ext4 /dev/s\\134 rw"
    )
    first, second = parse_mounts(table)
    assert (str(first.point), first.source) == ("/my sets\t", "")
    assert (str(second.point), second.source) == ("/a\x0cb", "/dev/s\\")


@pytest.mark.parametrize(
    "line", ["", "not a mount", "20 1 8:1 / /x rw", "20 1 8:1 / x rw - ext4 d rw", "1 - ext4 d rw"]
)
def test_malformed_lines_are_skipped(line: str) -> None:
    assert [*parse_mounts(line)] == []


@given(st.text(alphabet="/ -\\0417\nab,"))
def test_points_are_below_the_root(text: str) -> None:
    for mount in parse_mounts(f"{text}\n20 1 8:1 / /{text} rw - x y z"):
        mount.point.relative_to("/")
