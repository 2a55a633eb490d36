"""The smoke recipe's own data and feeder: made once, ended with the job, however that ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from feeder.errors import ResourceError
from feeder.installation import install_command
from tests.support.daemon import wait_until
from trainer_client.reference import own_feeder as module
from trainer_client.reference.own_feeder import own_feeder
from trainer_client.train import main

ROOT = Path(__file__).resolve().parents[3]

HOLD = """
import sys, time
from pathlib import Path
from trainer_client.reference import own_feeder
own_feeder.IMAGES = {"train": 20, "val": 20}
with own_feeder.own_feeder(Path(sys.argv[1]), lambda line: None) as endpoint:
    print(endpoint, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IMAGES", {"train": 120, "val": 30})


def test_a_smoke_run_needs_nothing_and_its_data_is_used_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--recipe", "smoke", "--output", str(tmp_path), "--device", "cpu"]
    assert main([*arguments, "--epochs", "1"]) == 0
    output = capsys.readouterr().out
    assert "drawing 120 synthetic images\npacking them\n" in output
    assert "1 x 32 images a step, 3 steps an epoch, 120 images, 10 classes" in output
    assert sorted(each.name for each in (tmp_path / "data").iterdir()) == ["train", "val"]
    assert processes_of(tmp_path) == []
    assert main([*arguments, "--epochs", "2", "--resume", "auto"]) == 0
    output = capsys.readouterr().out
    assert "drawing" not in output
    assert "epoch 1: loss " in output


def test_not_even_sigkill_leaves_a_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ipc://")
        assert processes_of(tmp_path)
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: processes_of(tmp_path) == [], "its processes are gone")


def test_a_command_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLASSES", 0)
    with pytest.raises(ResourceError) as caught, own_feeder(tmp_path, lambda line: None):
        pass
    text = str(caught.value)
    assert text.startswith("`feeder-bench synthetic` ended with status 2: ")
    assert "classes is 0; it must be 1 to" in text
    assert "\n" not in text


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


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ResourceError, match=r"cannot write to .*: name another --output"),
        own_feeder(tmp_path / "file" / "run", lambda line: None),
    ):
        pass


def processes_of(folder: Path) -> list[int]:
    """Return the processes that work on the data of a run, but for this one."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        line = process.info["cmdline"] or []
        if any(str(folder / "data") in each for each in line) and process.pid != os.getpid():
            found.append(process.pid)
    return found
