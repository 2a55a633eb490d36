"""The unit and its example configuration: valid, complete, and consistent with the daemon."""

import ast
import contextlib
import dataclasses
import itertools
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from feeder.cli.serve import find_cache_folder
from feeder.daemon.config import CacheConfig, ServeConfig, load_config
from feeder.daemon.early_answers import EXTENSION_S
from feeder.daemon.node_process import START_DEADLINE_S
from feeder.daemon.supervisor import HARD_END_S
from feeder.errors import ConfigError, DatasetError

FOLDER = Path(__file__).parents[2] / "systemd"
EXAMPLE = FOLDER / "feeder.toml"
EXPOSURE_MAX = 2.0
"""Exposure level of systemd-analyze security, 0 (best) to 10. With systemd 252 it is 1.3, for the
network, /proc and @resources, which the daemon needs; newer versions rate more strictly."""


def analyze(*arguments: str) -> str:
    """Run systemd-analyze, which must succeed; return its output."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is missing: apt-get install systemd")
    answer = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout + answer.stderr


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that exists, which systemd-analyze requires."""
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


def test_the_unit_is_valid(unit: Path) -> None:
    assert analyze("verify", "--man=no", str(unit)) == ""


def test_the_unit_is_sandboxed(unit: Path) -> None:
    report = analyze("security", "--offline=true", "--no-pager", str(unit))
    level = re.search(r"Overall exposure level for feeder.service: ([\d.]+)", report)
    assert level is not None, report
    assert float(level[1]) <= EXPOSURE_MAX, report


def test_the_unit_agrees_with_the_daemon() -> None:
    unit = {name: texts[0] for name, texts in settings().items()}
    assert float(unit["TimeoutStopSec"]) > HARD_END_S
    assert float(unit["TimeoutStartSec"]) == EXTENSION_S > START_DEADLINE_S
    cache = find_cache_folder("", {"CACHE_DIRECTORY": f"/var/cache/{unit['CacheDirectory']}"})
    assert cache == Path("/var/cache/feeder")
    assert int(unit["SuccessExitStatus"]) == 128 + signal.SIGTERM, "while it packs"
    prevented = set(map(int, unit["RestartPreventExitStatus"].split()))
    assert prevented == {ConfigError.exit_status, DatasetError.exit_status}
    assert int(unit["LimitNOFILE"]) > 4 * ServeConfig().open_shards


def syscalls(group: str) -> Iterator[str]:
    """Yield the members of a systemd group of calls, and of the groups that it includes."""
    for line in analyze("syscall-filter", "--no-pager", group).splitlines()[1:]:
        name = line.strip()
        if name.startswith("@"):
            yield from syscalls(name)
        elif name and not name.startswith("#"):
            yield name


def test_the_filter_allows_the_calls_that_the_daemon_needs() -> None:
    allow, deny = settings()["SystemCallFilter"]
    assert not allow.startswith("~")
    allowed = {name for group in allow.split() for name in syscalls(group)}
    allowed -= {name for group in deny.removeprefix("~").split() for name in syscalls(group)}
    needed = {"set_mempolicy", "migrate_pages", "sched_setaffinity", "memfd_create", "prctl"}
    needed |= {"setpriority", "eventfd2", "fallocate"}  # of the fetcher
    assert (
        needed | {"sendmsg", "ftruncate", "pread64", "pwrite64", "fcntl", "epoll_wait", "clone3"}
        <= allowed
    )


def test_the_example_loads_and_lists_every_key_with_its_default() -> None:
    config = load_config(EXAMPLE, {})
    assert (config.serve, config.cache) == (ServeConfig(), CacheConfig())
    assert (config.log_level, config.data) == (load_config(None, {}).log_level, {})
    document = tomllib.loads(EXAMPLE.read_text())
    assert set(document) == {"log_level", "log_format", "serve", "cache", "data"}
    for table, kind in (("serve", ServeConfig), ("cache", CacheConfig)):
        assert list(document[table]) == [field.name for field in dataclasses.fields(kind)]


def test_ranges_in_comments_of_the_example_are_those_that_the_daemon_accepts(
    tmp_path: Path,
) -> None:
    text = re.sub(r"\n# ", " ", EXAMPLE.read_text())
    ranges = re.findall(r", ([\d.]+) \.\. ([\d.]*\d)[^\n]*\n(\w+) = ", text)
    assert len(ranges) == 9
    for least, most, key in ranges:
        for number, is_allowed in (
            *((least, True), (most, True)),
            *((f"{ast.literal_eval(least) - 1}", False), (f"{ast.literal_eval(most) + 1}", False)),
        ):
            (tmp_path / "x.toml").write_text(f"[serve]\n{key} = {number}\n")
            error = (
                contextlib.nullcontext() if is_allowed else pytest.raises(ConfigError, match=key)
            )
            with error:
                load_config(tmp_path / "x.toml", {})


def test_every_key_of_the_example_has_a_comment() -> None:
    lines = EXAMPLE.read_text().splitlines()
    for above, line in itertools.pairwise(lines):
        if "=" in line and not line.startswith("#"):
            assert above.startswith("# "), f"no comment above: {line}"
