"""Which checkpoints are kept, and which one is offered when one is damaged."""

import errno
import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from feeder.errors import ConfigError, ResourceError
from tests.support.sources import REPOSITORY
from trainer_client.reference.checkpoints.checkpoint import load_checkpoint
from trainer_client.reference.checkpoints.progress import Progress
from trainer_client.reference.checkpoints.store import (
    CheckpointFile,
    CheckpointFolder,
    list_checkpoints,
    position_of,
)
from trainer_client.reference.results import EpochResult


def make_epoch(epoch: int, correct: int | None) -> EpochResult:
    return EpochResult(
        **{"epoch": epoch, "steps": 5, "images": 80, "seconds": 1.0, "images_per_s": 80.0},
        **{"wait_share": 0.0, "loss": 1.0, "lr": 0.1},
        val_images=100 if correct is not None else None,
        val_correct=correct,
    )


def save_epochs(folder: CheckpointFolder, *correct: int | None) -> Progress:
    progress = Progress()
    for epoch, count in enumerate(correct):
        progress.finish_epoch(make_epoch(epoch, count))
        folder.save({"epochs": epoch + 1}, progress)
    return progress


def fail(line: str) -> None:
    raise AssertionError(line)


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())


def test_a_folder_keeps_the_latest_and_the_best(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "run" / "checkpoints", keep=2)
    with folder.hold(fail):
        save_epochs(folder, 40, 70, 60, 50, 65)
    assert names(folder.folder) == ["best.pt", "epoch-0004.pt", "epoch-0005.pt", "lock"]
    assert load_checkpoint(folder.folder / "best.pt")["epochs"] == 2
    assert folder.newest() == folder.folder / "epoch-0005.pt"


def test_without_evaluations_there_is_no_best(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=3)
    save_epochs(folder, None, None)
    assert names(tmp_path) == ["epoch-0001.pt", "epoch-0002.pt"]


def test_steps_replace_each_other_and_the_next_epoch_replaces_them(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=3)
    progress = save_epochs(folder, 40)
    for step in (2, 4):
        progress.step = step
        folder.save({"step": step}, progress)
    assert names(tmp_path) == ["best.pt", "epoch-0001-step-000004.pt", "epoch-0001.pt"]
    assert folder.newest() == tmp_path / "epoch-0001-step-000004.pt"
    progress.finish_epoch(make_epoch(1, 30))
    folder.save({}, progress)
    assert names(tmp_path) == ["best.pt", "epoch-0001.pt", "epoch-0002.pt"]


def test_the_newest_is_by_position_not_by_name(tmp_path: Path) -> None:
    for name in ("epoch-9999.pt", "epoch-10000.pt", "epoch-10000-step-000007.pt", "notes.pt"):
        (tmp_path / name).touch()
    (tmp_path / "epoch-20000.pt.unfinished").touch()
    assert len(list_checkpoints(tmp_path)) == 3
    assert CheckpointFolder(tmp_path, keep=1).newest() == tmp_path / "epoch-10000-step-000007.pt"
    assert position_of(tmp_path / "notes.pt") == (-1, 0)
    assert list_checkpoints(tmp_path / "nowhere") == []


def test_a_damaged_checkpoint_offers_the_one_before(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=3)
    save_epochs(folder, 40, 50)
    newest, previous = tmp_path / "epoch-0002.pt", tmp_path / "epoch-0001.pt"
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.raises(ConfigError) as caught:
        folder.load(newest)
    assert f"resume from the one before it with --resume {previous}" in str(caught.value)
    assert folder.load(previous)["epochs"] == 1
    previous.write_bytes(b"")
    with pytest.raises(ConfigError, match="name another one"):
        folder.load(previous)


def test_a_file_keeps_the_one_before_and_offers_it(tmp_path: Path) -> None:
    store = CheckpointFile(tmp_path / "job.pt")
    assert store.newest() is None
    for epoch in (1, 2, 3):
        store.save({"epoch": epoch}, Progress())
    assert names(tmp_path) == ["job.pt", "job.pt.previous"]
    assert load_checkpoint(tmp_path / "job.pt.previous")["epoch"] == 2
    store.path.write_bytes(store.path.read_bytes()[:-50])
    with pytest.raises(ConfigError, match=r"one before it with --resume .*job\.pt\.previous"):
        store.load(store.path)


def test_a_file_system_without_links_gets_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    store = CheckpointFile(tmp_path / "job.pt")
    store.save({"epoch": 1}, Progress())
    store.save({"epoch": 2}, Progress())
    assert load_checkpoint(tmp_path / "job.pt.previous")["epoch"] == 1


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = CheckpointFolder(tmp_path / "file" / "checkpoints", keep=3)
    with (
        pytest.raises(ResourceError, match=r"cannot make the folder .*: name another --output"),
        folder.hold(fail),
    ):
        pass


def test_of_equal_ones_the_first_is_the_best(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=1)
    save_epochs(folder, 50, 50, None, 50)
    assert load_checkpoint(tmp_path / "best.pt")["epochs"] == 1


def test_a_kill_before_the_best_was_named_is_mended(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=3)
    progress = save_epochs(folder, 40, 90)
    (tmp_path / "best.pt").unlink()
    folder.mend(tmp_path / "epoch-0002.pt", progress)
    assert load_checkpoint(tmp_path / "best.pt")["epochs"] == 2
    progress.history[-1] = make_epoch(1, 30)
    folder.mend(tmp_path / "epoch-0001.pt", progress)
    assert load_checkpoint(tmp_path / "best.pt")["epochs"] == 2


def test_checkpoints_of_a_run_that_was_left_are_removed(tmp_path: Path) -> None:
    """After an earlier one was resumed, so that the newest is that of the present run."""
    folder = CheckpointFolder(tmp_path, keep=2)
    save_epochs(folder, 40, 50, 60)
    progress = Progress(epoch=2, step=4, history=[make_epoch(0, 40), make_epoch(1, 50)])
    folder.save({}, progress)
    assert names(tmp_path) == ["best.pt", "epoch-0002-step-000004.pt", "epoch-0002.pt"]
    assert folder.newest() == tmp_path / "epoch-0002-step-000004.pt"


def test_unfinished_files_of_a_killed_job_are_removed(tmp_path: Path) -> None:
    (tmp_path / "epoch-0001-step-000003.pt.unfinished").touch()
    with CheckpointFolder(tmp_path, keep=2).hold(fail):
        assert names(tmp_path) == ["lock"]


HOLD = """
import sys, time
from pathlib import Path
from trainer_client.reference.checkpoints.store import CheckpointFolder
with CheckpointFolder(Path(sys.argv[1]), keep=1).hold(print):
    print("held", flush=True)
    time.sleep(600)
"""


def test_one_job_at_a_time_saves_to_a_folder_or_file_until_it_dies(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "run" / "checkpoints", keep=1)
    command = [sys.executable, "-c", HOLD, str(folder.folder)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        (folder.folder / "epoch-0001.pt.unfinished").touch()  # which that job is writing
        with pytest.raises(ConfigError) as caught, folder.hold(fail):
            pass
        process.kill()
    assert str(caught.value) == (
        f"another job saves to {tmp_path / 'run'}: process {process.pid} on "
        f"{socket.gethostname()}. End that one, or name another folder or file for this one"
    )
    assert names(folder.folder) == ["epoch-0001.pt.unfinished", "lock"]
    with folder.hold(fail):
        assert names(folder.folder) == ["lock"]
    file = CheckpointFile(tmp_path / "job.pt")
    with file.hold(fail), pytest.raises(ConfigError, match=r"saves to .*job\.pt: process "):
        file.hold(fail).__enter__()


def test_a_file_system_without_locks_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    lines: list[str] = []
    with CheckpointFolder(tmp_path, keep=1).hold(lines.append):
        pass
    assert lines == [
        f"cannot lock {tmp_path}/lock (No locks available): see that no other job saves to "
        f"{tmp_path.parent}"
    ]
