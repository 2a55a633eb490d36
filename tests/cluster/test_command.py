"""``feeder cluster`` where Ray is missing, of another version, hangs, or ends the process.

A package named ``ray`` on PYTHONPATH takes the place of the real one.
"""

import os
import subprocess
from pathlib import Path

import pytest

from bench.daemon import free_port
from feeder.cluster.ray_settings import ENVIRONMENT
from feeder.installation import install_command
from tests.support.daemon import listening_port, pack_small
from tests.support.sources import REPOSITORY, feeder_command


def run(folder: Path, source: str, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run a command with a package ``ray`` of this source."""
    package = folder / "packages" / "ray"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(source)
    environ = {**os.environ, "PYTHONPATH": str(package.parent)}
    environ.pop("RAY_ADDRESS", None)
    return subprocess.run(
        feeder_command(*arguments),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environ,
    )


def check_line(done: "subprocess.CompletedProcess[str]", status: int, *words: str) -> None:
    """Check that a command failed with one line that has these words."""
    assert done.returncode == status, done
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("feeder: error: ")
    assert all(word in done.stderr for word in words), done.stderr


MISSING = "raise ModuleNotFoundError(\"No module named 'ray'\", name='ray')"


@pytest.mark.parametrize("command", [["status"], ["scale", "2"], ["down"]])
def test_without_ray_the_line_says_how_to_install_it(tmp_path: Path, command: list[str]) -> None:
    done = run(tmp_path, MISSING, "cluster", *command)
    check_line(done, 4, "Ray is not installed", install_command("daemon", "ray"))


def test_packing_without_ray_says_how_to_install_it(tmp_path: Path) -> None:
    dataset = pack_small(tmp_path / "small")
    done = run(tmp_path, MISSING, "pack", dataset.parent / "source", tmp_path / "new", "--ray")
    assert done.returncode == 4
    assert "Ray is not installed" in done.stderr.splitlines()[-1]


def test_a_version_that_is_not_supported_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "__version__ = '2.40.0'", "cluster", "status")
    check_line(done, 4, "Ray 2.40.0", "2.60")


def test_a_head_that_does_not_run_is_reported(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    done = run(tmp_path, "__version__ = '2.60.0'", "cluster", "status", "--address", address)
    check_line(done, 5, address, "refused", "ray start")


def test_no_cluster_at_all_is_reported(tmp_path: Path) -> None:
    source = (
        "__version__ = '2.60.0'\n"
        "def init(**_): raise ConnectionError('Could not find any running Ray instance.')\n"
    )
    check_line(
        run(tmp_path, source, "cluster", "status"),
        5,
        "no Ray cluster runs on this machine",
        "--address",
    )


def test_a_head_that_hangs_ends_the_command_at_its_deadline(tmp_path: Path) -> None:
    source = "import threading\n__version__ = '2.60.0'\ndef init(**_): threading.Event().wait()\n"
    with listening_port() as port:
        address = f"127.0.0.1:{port}"
        done = run(tmp_path, source, *("cluster", "status", "--address", address, "--timeout", "5"))
    check_line(done, 5, "no answer within 5 s", f"joining the Ray cluster at {address}")


def test_ray_that_ends_the_process_is_reported_with_its_last_line(tmp_path: Path) -> None:
    source = (
        "import os, sys\n"
        "__version__ = '2.60.0'\n"
        "def init(**_):\n"
        "    sys.stdout.write('Check failed: no session\\n'); sys.stdout.flush(); os._exit(1)\n"
    )
    check_line(run(tmp_path, source, "cluster", "status"), 5, "Check failed: no session")


def test_another_version_than_the_clusters_is_reported(tmp_path: Path) -> None:
    source = (
        "__version__ = '2.60.0'\n"
        "def init(**_): raise RuntimeError('Version mismatch: the cluster has 2.50.0\\n  more')\n"
    )
    check_line(run(tmp_path, source, "cluster", "status"), 5, "Version mismatch", "2.50.0")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["scale", "0"], ["1 .. 4096", "down"]),
        (["status", "--timeout", "1"], ["--timeout 1", "5 .. 3600"]),
        (["status", "--timeout", "nan"], ["--timeout nan"]),
        (["status", "--address", "ray://a:1"], ["ray://a:1", "HOST:PORT"]),
        (["status", "--address", "nonsense"], ["nonsense", "HOST:PORT"]),
        (["status", "--config", "/nonexistent/feeder.toml"], ["/nonexistent/feeder.toml"]),
    ],
)
def test_arguments_without_a_meaning_are_refused(
    tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    check_line(run(tmp_path, "__version__ = '2.60.0'", "cluster", *arguments), 2, *words)


@pytest.mark.parametrize(
    ("toml", "options", "words"),
    [
        ("", [], ["nothing to serve", "[data]"]),
        ('[serve]\nbind = ["tcp://*:5555"]\n[data]\nd = "/d"\n', [], ["open to the network"]),
        ('[data]\nd = "/d"\n', ["--lookup", "70000"], ["--lookup 70000"]),
        ('[data]\nd = "/d"\n', ["--feeders", "0"], ["0 feeders"]),
        ('[data]\nd = "/d"\n', ["--local", "--address", "10.0.0.1:6379"], ["--local"]),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused_before_ray_is_asked(
    tmp_path: Path, toml: str, options: list[str], words: list[str]
) -> None:
    config = tmp_path / "feeder.toml"
    config.write_text(toml)
    done = run(tmp_path, MISSING, "cluster", "up", "--config", config, *options)
    check_line(done, 2, *words)


def test_the_environment_for_ray_is_printed_for_a_shell() -> None:
    done = subprocess.run(
        ["sh", "-c", 'eval "$("$@")"; env', "sh", *feeder_command("cluster", "env")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert {f"{name}={value}" for name, value in ENVIRONMENT.items()} <= {*done.stdout.splitlines()}


def test_the_documented_environment_is_the_shipped_one() -> None:
    text = (REPOSITORY / "docs" / "ray.md").read_text()
    assert all(f"{name}={value}" in text for name, value in ENVIRONMENT.items())
