"""The unit and its example configuration: clean, complete, and true to what the daemon does."""

import dataclasses
import itertools
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from feeder.daemon.config import CacheConfig, ServeConfig, load_config
from feeder.daemon.node_process import START_DEADLINE_S
from feeder.daemon.supervisor import HARD_END_S
from feeder.errors import ConfigError, DatasetError

FOLDER = Path(__file__).parents[2] / "systemd"
EXAMPLE = FOLDER / "feeder.toml"
EXPOSURE_MAX = 2.0
"""Of systemd-analyze security, 0 to 10, 0 best. It was 1.3 with systemd 252, for the network, /proc
and @resources that we need; newer versions ask for more."""


def analyze(*arguments: str) -> str:
    """Run systemd-analyze; what it says, which must not be an error."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is missing: apt-get install systemd")
    answer = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout + answer.stderr


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that exists, as systemd-analyze insists on one."""
    text = (FOLDER / "feeder.service").read_text()
    assert "ExecStart=/opt/feeder/bin/feeder serve" in text
    copy = tmp_path / "feeder.service"
    copy.write_text(text.replace("/opt/feeder/bin/feeder", sys.executable))
    return copy


def settings() -> dict[str, list[str]]:
    """The unit's assignments by name, in order."""
    found: dict[str, list[str]] = {}
    for line in (FOLDER / "feeder.service").read_text().splitlines():
        if match := re.fullmatch(r"([A-Za-z]+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


def test_unit_is_clean(unit: Path) -> None:
    assert analyze("verify", "--man=no", str(unit)) == ""


def test_unit_is_as_closed_as_it_was(unit: Path) -> None:
    report = analyze("security", "--offline=true", "--no-pager", str(unit))
    level = re.search(r"Overall exposure level for feeder.service: ([\d.]+)", report)
    assert level is not None, report
    assert float(level[1]) <= EXPOSURE_MAX, report


def test_timeouts_leave_the_daemon_its_own_time() -> None:
    unit = settings()
    assert float(unit["TimeoutStopSec"][0]) > HARD_END_S
    assert float(unit["TimeoutStartSec"][0]) > START_DEADLINE_S


def test_mistakes_of_the_operator_are_not_retried() -> None:
    prevented = set(map(int, settings()["RestartPreventExitStatus"][0].split()))
    assert prevented == {ConfigError.exit_status, DatasetError.exit_status}


def test_limits_fit_the_defaults() -> None:
    assert int(settings()["LimitNOFILE"][0]) > 4 * ServeConfig().open_shards


def syscalls(group: str) -> Iterator[str]:
    """Yield the members of a group of systemd's, and of those that it includes."""
    for line in analyze("syscall-filter", "--no-pager", group).splitlines()[1:]:
        name = line.strip()
        if name.startswith("@"):
            yield from syscalls(name)
        elif name and not name.startswith("#"):
            yield name


def test_filter_leaves_the_calls_that_placement_needs() -> None:
    allow, deny = settings()["SystemCallFilter"]
    assert not allow.startswith("~")
    allowed = {name for group in allow.split() for name in syscalls(group)}
    allowed -= {name for group in deny.removeprefix("~").split() for name in syscalls(group)}
    needed = {"set_mempolicy", "migrate_pages", "sched_setaffinity", "memfd_create", "prctl"}
    assert (
        needed | {"sendmsg", "ftruncate", "pread64", "pwrite64", "fcntl", "epoll_wait", "clone3"}
        <= allowed
    )


def test_example_loads_and_lists_every_key_with_its_default() -> None:
    config = load_config(EXAMPLE, {})
    assert (config.serve, config.cache) == (ServeConfig(), CacheConfig())
    assert (config.log_level, config.data) == (load_config(None, {}).log_level, {})
    document = tomllib.loads(EXAMPLE.read_text())
    assert set(document) == {"log_level", "serve", "cache", "data"}
    for table, kind in (("serve", ServeConfig), ("cache", CacheConfig)):
        assert list(document[table]) == [field.name for field in dataclasses.fields(kind)]


def test_every_key_of_the_example_has_its_reason() -> None:
    lines = EXAMPLE.read_text().splitlines()
    for above, line in itertools.pairwise(lines):
        if "=" in line and not line.startswith("#"):
            assert above.startswith("# "), f"no reason above: {line}"
