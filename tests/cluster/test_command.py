"""``feeder cluster`` where Ray is missing, of another version, hangs, or ends the process.

A package named ``ray`` on PYTHONPATH takes the place of the real one.
"""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.daemon import free_port
from feeder.cli.main import main
from feeder.cluster import command
from feeder.cluster.settings import ENVIRONMENT
from feeder.installation import install_command
from tests.support.daemon import listening_port, pack_small
from tests.support.sources import REPOSITORY, feeder_command

MISSING = "raise ModuleNotFoundError(\"No module named 'ray'\", name='ray')"
VERSION = "__version__ = '2.60.0'\n"

Check = Callable[..., None]


@pytest.fixture
def check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Check:
    """Checks that a command, with a package ``ray`` of this source, fails with one line."""
    package = tmp_path / "packages" / "ray"
    package.mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def check(source: str, command: str, *options: str | Path, status: int, words: list[str]):  # type: ignore[no-untyped-def]
        (package / "__init__.py").write_text(source)
        assert main([*command.split(), *map(str, options)]) == status
        output = capfd.readouterr()
        assert output.out == ""
        *others, line = output.err.splitlines()
        assert not others or command.startswith("pack "), others
        assert line.startswith("feeder: error: ")
        assert all(word in line for word in words), line

    return check


def test_without_ray_or_its_head_the_line_says_what_to_do(check: Check, tmp_path: Path) -> None:
    source = pack_small(tmp_path / "small").parent / "source"
    words = ["Ray is not installed", install_command("daemon", "ray")]
    pack = f"pack {source} {tmp_path / 'new'} --ray"
    check(MISSING, "cluster down", status=4, words=words)
    check(MISSING, pack, status=4, words=words)
    words = ["no Ray cluster answers", "refused", "ray start"]
    check(VERSION, f"{pack} 127.0.0.1:{free_port()}", status=5, words=words)


TASKS = """
class exceptions:
    class RayError(Exception): ...
class Future:
    def __init__(self, value): self.value = value
class remote:
    def __init__(self, function): self.function = function
    def options(self, **_): return self
    def remote(self, *arguments): return Future(self.function(*arguments))
def init(**_): print("Ray prints")
def cluster_resources(): return {"CPU": 2}
def put(value): return value
def wait(futures, timeout): return futures[:1], futures[1:]
def get(future): return future.value
"""


def test_parts_that_tasks_of_ray_pack_are_those_of_the_pool(
    check: Check,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "_READ_BYTES", 7)  # as a pipe may split messages
    source = pack_small(tmp_path / "small").parent / "source"
    check(VERSION, "cluster status --address x", status=2, words=[])  # writes the package
    (tmp_path / "packages" / "ray" / "__init__.py").write_text(VERSION + TASKS)
    fingerprints = set()
    for name, options in (("ray", ["--ray"]), ("pool", ["--jobs", "1"])):
        folder = tmp_path / name
        assert main(["pack", str(source), str(folder), "--shards", "3", *options]) == 0
        fingerprints.add(json.loads((folder / "manifest.json").read_text())["fingerprint"])
    assert len(fingerprints) == 1
    assert "Ray prints" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("source", "status", "words"),
    [
        ("__version__ = '2.40.0'", 4, ["Ray 2.40.0", "2.60"]),
        (
            "def init(**_): raise ConnectionError('Could not find any running Ray instance.')",
            5,
            ["no Ray cluster runs on this machine", "--address"],
        ),
        (
            "def init(**_): raise RuntimeError('Version mismatch: the cluster has 2.50.0\\n more')",
            5,
            ["Version mismatch", "2.50.0"],
        ),
        (
            "import os, sys\n"
            "def init(**_):\n"
            "    sys.stdout.write('Check failed: no session\\n'); sys.stdout.flush(); os._exit(1)",
            5,
            ["Ray ended the command while joining", "Check failed: no session"],
        ),
    ],
)
def test_a_cluster_that_cannot_be_joined_is_one_line(
    check: Check, source: str, status: int, words: list[str]
) -> None:
    check(VERSION + source, "cluster status", status=status, words=words)


def test_a_head_that_does_not_run_is_one_line_and_one_that_hangs_at_the_deadline(
    check: Check,
) -> None:
    address = f"127.0.0.1:{free_port()}"
    words = [f"no Ray cluster answers at {address}", "refused", "ray start"]
    check(VERSION, "cluster status --address", address, status=5, words=words)
    source = VERSION + "import threading\ndef init(**_): threading.Event().wait()\n"
    with listening_port() as port:
        address = f"127.0.0.1:{port}"
        words = ["no answer within 5 s", f"joining the Ray cluster at {address}"]
        check(source, "cluster status --timeout 5 --address", address, status=5, words=words)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("scale 0", ["1 .. 4096", "down"]),
        ("status --timeout nan", ["--timeout nan", "5 .. 3600"]),
        ("status --address ray://a:1", ["ray://a:1", "HOST:PORT"]),
        ("status --address nonsense", ["nonsense", "HOST:PORT"]),
        ("status --config /nonexistent/feeder.toml", ["/nonexistent/feeder.toml"]),
    ],
)
def test_arguments_without_a_meaning_are_refused(
    check: Check, command: str, words: list[str]
) -> None:
    check(VERSION, f"cluster {command}", status=2, words=words)


@pytest.mark.parametrize(
    ("toml", "options", "words"),
    [
        ("", "", ["nothing to serve", "[data]"]),
        ('[serve]\nbind = ["tcp://*:5555"]\n[data]\nd = "/d"\n', "", ["open to the network"]),
        ('[data]\nd = "/d"\n', " --lookup 70000", ["--lookup 70000"]),
        ('[data]\nd = "/d"\n', " --feeders 0", ["0 feeders"]),
        ('[data]\nd = "/d"\n', " --local --address 10.0.0.1:6379", ["--local"]),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused_before_ray_is_asked(
    check: Check, tmp_path: Path, toml: str, options: str, words: list[str]
) -> None:
    config = tmp_path / "feeder.toml"
    config.write_text(toml)
    check(MISSING, f"cluster up{options} --config", config, status=2, words=words)


def test_the_environment_for_ray_is_printed_for_a_shell_and_documented() -> None:
    done = subprocess.run(
        ["sh", "-c", 'eval "$("$@")"; env', "sh", *feeder_command("cluster", "env")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = {f"{name}={value}" for name, value in ENVIRONMENT.items()}
    assert lines <= {*done.stdout.splitlines()}
    text = (REPOSITORY / "docs" / "ray.md").read_text()
    assert all(line in text for line in lines)
