"""Commands with closed, full or unread standard streams, and in odd working directories."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.process.commands import COMMANDS, SCRIPT, run_of
from tests.support.daemon import DEADLINE_S
from tests.support.sources import file_tree

CLOSED = ("<&-", ">&-", "2>&-", "<&- >&- 2>&-")
OUTPUT_ERROR = "feeder: error: standard output cannot be written (No space left on device)"


def in_shell(
    script: str, *arguments: str | Path, cwd: Path | None = None, **environ: str
) -> "subprocess.CompletedProcess[str]":
    """Run a bash script in which ``$F`` is the command with its arguments."""
    command = shlex.join(map(str, [SCRIPT, *arguments]))
    return subprocess.run(
        ["bash", "-c", script.replace("$F", command)],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_closed_streams_change_only_the_output(name: str, packed: Path, tmp_path: Path) -> None:
    results = []
    for closed in ("", *(CLOSED if name == "verify" else CLOSED[-1:])):
        folder = tmp_path / f"run{len(results)}"
        folder.mkdir()
        done = in_shell(f"$F {closed}", *run_of(name, packed, folder))
        assert done.returncode == 0, (closed, done.stderr)
        assert "Traceback" not in done.stderr
        assert bool(done.stdout) == (">&-" not in closed.replace("2>&-", ""))
        results.append(file_tree(folder))
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("name", COMMANDS)
def test_full_standard_output_is_one_line_and_a_status(
    name: str, packed: Path, tmp_path: Path
) -> None:
    done = in_shell("$F >/dev/full", *run_of(name, packed, tmp_path))
    assert done.returncode == 4
    *before, last = done.stderr.splitlines()
    assert last.startswith(OUTPUT_ERROR)
    assert not [line for line in before if line.startswith("feeder: ") or "Error" in line]
    if name == "pack":
        assert (tmp_path / "made").exists(), "the work is done"


def test_messages_to_a_full_standard_error_are_dropped(packed: Path, tmp_path: Path) -> None:
    done = in_shell("$F 2>/dev/full", *run_of("pack", packed, tmp_path))
    assert (done.returncode, bool(done.stdout), done.stderr) == (0, True, "")


@pytest.mark.parametrize(("name", "unbuffered"), [("pack", ""), ("verify", "1"), ("help", "1")])
def test_closed_pipe_ends_a_command_silently(
    name: str, unbuffered: str, packed: Path, tmp_path: Path
) -> None:
    # The command starts only after the pipe's reader has ended.
    script = "set -o pipefail; { while [ -e alive ]; do sleep 0.01; done; $F; } | { rm alive; }"
    (tmp_path / "alive").touch()
    command = run_of(name, packed, tmp_path)
    done = in_shell(script, *command, cwd=tmp_path, PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 141
    assert not any(word in done.stderr for word in ("feeder: ", "Traceback", "BrokenPipe"))


def test_verify_reports_damage_by_status_if_nothing_can_be_printed(
    packed: Path, tmp_path: Path
) -> None:
    damaged = Path(shutil.copytree(packed, tmp_path / "damaged"))
    data = bytearray((damaged / "shard-00000.fds").read_bytes())
    data[100] ^= 1
    (damaged / "shard-00000.fds").write_bytes(data)
    for redirection, status in ((">&- 2>&-", 3), (">/dev/full", 4)):
        done = in_shell(f"$F {redirection}", "verify", damaged, "--jobs", "1")
        assert done.returncode == status, (redirection, done.stderr)


SHADOWS = ("feeder", "numpy", "random", "socket", "json", "signal", "typing", "msgspec")


def test_modules_in_the_working_directory_shadow_no_import(packed: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    for shadowed in SHADOWS:
        (here / shadowed).mkdir(parents=True)
        (here / shadowed / "__init__.py").write_text("raise SystemExit('shadowed')\n")
    done = in_shell("$F", *run_of("pack", packed, tmp_path), cwd=here)
    assert (done.returncode, "shadowed" in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("pack", "source", "made"),
        ("serve", "--data", "d=dataset"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_relative_paths_in_a_deleted_folder_are_one_line(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    script = "mkdir gone && cd gone && rmdir ../gone && $F"
    done = in_shell(script, *arguments, cwd=tmp_path)
    assert done.returncode in (2, 3, 4)
    assert done.stderr.startswith("feeder: error: ")
    assert len(done.stderr.splitlines()) == 1, done.stderr
