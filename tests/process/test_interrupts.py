"""Ctrl-C and SIGTERM at any point of a command's start and exit: a line, a status, no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.commands import SCRIPT, run_of
from tests.support.daemon import DEADLINE_S
from tests.support.sources import file_tree

AT_EACH_IMPORT = """
import _signal, os, sys

def fork_and_interrupt(event, arguments):
    # At every few imports a forked copy of the process gets a signal; this process waits for it.
    global imports, every
    if event != "import":
        return
    if not imports and arguments[0] != "feeder.errors":  # before Feeder's code
        return
    if getattr(_signal.getsignal(_signal.SIGINT), "__name__", "") != "exit_at_once" and imports:
        return  # the command has installed its own handlers
    if _signal.SIGINT in _signal.pthread_sigmask(_signal.SIG_BLOCK, []):
        return  # the signal would be deferred
    imports += 1
    if imports % every:
        return
    number = (_signal.SIGINT, _signal.SIGTERM)[imports // every % 2]
    copy = os.fork()
    if copy == 0:
        imports = every = 10**9  # the copy makes no copies
        os.dup2(os.open(f"{notes}.copy", os.O_CREAT | os.O_TRUNC | os.O_WRONLY), 2)
        os.kill(os.getpid(), number)
        return
    status = os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
    with open(f"{notes}.copy") as messages, open(notes, "a") as file:
        print(arguments[0], status - number, repr(messages.read()), file=file)

imports, every, notes = 0, int(os.environ["EVERY"]), os.environ["NOTES"]
if os.environ["RUNS"] in " ".join(sys.orig_argv):
    sys.addaudithook(fork_and_interrupt)
"""

WITHIN_A_PAIR = """
import os, signal, sys

def interrupt(event, arguments):
    if event == "open" and "/made.pub" in str(arguments[0]):
        os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(interrupt)
"""


WHILE_SERVING_STARTS = """
import os, signal, sys

def interrupt(event, arguments):
    if event == "import" and arguments[0] == "feeder.daemon.supervisor":
        os.kill(os.getpid(), signal.SIGTERM)

sys.addaudithook(interrupt)
"""


def run_with(
    customisation: str, *command: str | Path, folder: Path, every: int = 1
) -> "subprocess.CompletedProcess[str]":
    """Run a command with ``customisation`` as the sitecustomize module of its processes."""
    hooks = folder / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(customisation)
    return subprocess.run(
        list(map(str, command)),
        env={
            **os.environ,
            "PYTHONPATH": f"{hooks}{os.pathsep}{Path(__file__).parents[2]}",
            "NOTES": str(folder / "notes"),
            "EVERY": str(every),
            "RUNS": " ".join(map(str, command[1:3])),
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.mark.parametrize("name", ["verify", "keygen"])
def test_a_signal_at_any_import_ends_a_command_with_a_line(
    name: str, packed: Path, tmp_path: Path
) -> None:
    done = run_with(AT_EACH_IMPORT, SCRIPT, *run_of(name, packed, tmp_path), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "notes").read_text().splitlines()
    assert len(lines) > (20 if name == "keygen" else 80)
    assert {line.split(" ", 1)[1] for line in lines} == {r"128 'feeder: interrupted\n'"}


@pytest.mark.parametrize(
    ("module", "name", "every"),
    [("bench", "feeder-bench", 25), ("trainer_client.train", "train", 100)],
)
def test_a_signal_at_any_import_ends_the_other_programs_with_a_line(
    module: str, name: str, every: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", module]
    command += ["compare", "a", "b"] if module == "bench" else ["tcp://127.0.0.1:1", "--help"]
    run_with(AT_EACH_IMPORT, *command, folder=tmp_path, every=every)
    lines = (tmp_path / "notes").read_text().splitlines()
    assert len(lines) > 10
    assert {line.split(" ", 1)[1] for line in lines} == {rf"128 '{name}: interrupted\n'"}


def test_daemon_interrupted_during_start_logs_a_line(packed: Path, tmp_path: Path) -> None:
    """At that point its standard error is a pipe of its own, which a thread relays."""
    serve = (SCRIPT, "serve", "--data", f"d={packed}", "--bind", f"ipc://{tmp_path}/s")
    done = run_with(WHILE_SERVING_STARTS, *serve, folder=tmp_path)
    assert (done.returncode, done.stderr) == (143, "feeder: interrupted\n")


def test_an_interrupted_keygen_leaves_both_keys_or_none(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    done = run_with(WITHIN_A_PAIR, SCRIPT, "keygen", keys / "made", folder=tmp_path)
    assert (done.returncode, done.stderr) == (130, "feeder: interrupted\n")
    assert sorted(file_tree(keys)) == ["made", "made.pub"]
