"""The smoke recipe's own data and feeder: made once, ended with the job, however that ends."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from feeder.installation import install_command
from tests.support.daemon import wait_until
from trainer_client.reference import own_feeder as module
from trainer_client.train import main

ROOT = Path(__file__).resolve().parents[3]

HOLD = """
import sys, time
from pathlib import Path
from trainer_client.reference import own_feeder
with own_feeder.own_feeder(Path(sys.argv[1]), lambda line: print(line, flush=True)) as endpoint:
    print(endpoint, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run with few images."""
    path = tmp_path_factory.mktemp("smoke")
    arguments = ["--recipe", "smoke", "--output", str(path), "--device", "cpu", "--epochs", "1"]
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.setattr(module, "IMAGES", {"train": 64, "val": 10})
        assert main(arguments) == 0
    (path / "output").write_text(output.getvalue())
    return path


def test_a_smoke_run_needs_nothing_and_leaves_its_data_and_no_process(folder: Path) -> None:
    output = (folder / "output").read_text()
    assert "drawing 64 synthetic images\npacking them\n" in output
    assert "1 x 32 images a step, 2 steps an epoch, 64 images, 10 classes" in output
    assert "epoch 0: loss " in output
    assert sorted(each.name for each in (folder / "data").iterdir()) == ["train", "val"]
    assert processes_of(folder) == []


def test_data_is_used_again_and_not_even_sigkill_leaves_a_process(folder: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "a feeder of this job serves them\n", "nothing is drawn"
        assert process.stdout.readline().startswith("ipc://")
        assert processes_of(folder)
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: processes_of(folder) == [], "its processes are gone")


def test_an_environment_of_a_client_alone_is_one_line_that_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("turbojpeg", "psutil"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["--recipe", "smoke", "--output", str(tmp_path), "--device", "cpu"]) == 4
    assert capsys.readouterr().err == (
        "train: error: the smoke recipe packs images and serves them, and the daemon's parts for "
        "that are not installed in this environment: PyTurboJPEG, psutil: "
        f"{install_command('daemon', 'client')}\n"
    )
    assert not (tmp_path / "data").exists()


def processes_of(folder: Path) -> list[int]:
    """Return the processes that work on the data of a run, but for this one."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        line = process.info["cmdline"] or []
        if any(str(folder / "data") in each for each in line) and process.pid != os.getpid():
            found.append(process.pid)
    return found
