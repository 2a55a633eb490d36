"""Checkpoint files: written whole, verified, kept, locked; and the one offered when one is bad."""

import errno
import fcntl
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from feeder.errors import ConfigError, ResourceError
from tests.support.hanging_fs import small_disk
from tests.trainer_client.reference.jobs import start
from tests.trainer_client.reference.test_tracking import make_result
from trainer_client.reference.checkpoints import (
    CheckpointFile,
    CheckpointFolder,
    load_checkpoint,
    load_for_resume,
    save_checkpoint,
)
from trainer_client.reference.results import EpochResult
from trainer_client.reference.saver import Progress


def make_epoch(epoch: int, correct: int | None) -> EpochResult:
    total = None if correct is None else 100
    return make_result(epoch, val_images=total, val_correct=correct)


def save(store: CheckpointFile | CheckpointFolder, progress: Progress) -> None:
    content = {"epoch": progress.epoch, "step": progress.step}
    store.save(content, progress.epoch, progress.step, is_best=progress.is_best)


def save_epochs(folder: CheckpointFolder, *correct: int | None) -> Progress:
    progress = Progress()
    for epoch, count in enumerate(correct):
        progress.finish_epoch(make_epoch(epoch, count))
        save(folder, progress)
    return progress


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())


@pytest.mark.parametrize(
    ("correct", "best"),
    [
        ([None, None], None),
        ([50, 50, None, 50], 1),  # of equal ones the first
        ([40, 70, 60, 50, 65], 2),
        ([0, 0], 1),
    ],
)
def test_a_folder_keeps_the_latest_and_the_first_of_the_most_accurate(
    tmp_path: Path, correct: list[int | None], best: int | None
) -> None:
    folder = CheckpointFolder(tmp_path / "run" / "checkpoints", keep=2)
    with folder.hold(print):
        save_epochs(folder, *correct)
    latest = [f"epoch-{epoch:04d}.pt" for epoch in (len(correct) - 1, len(correct))]
    assert names(folder.folder) == [*(["best.pt"] if best else []), *latest, "lock"]
    assert best is None or load_checkpoint(folder.folder / "best.pt")["epoch"] == best
    assert folder.newest() == folder.folder / latest[1]


def test_steps_replace_each_other_and_the_next_epoch_replaces_them(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=3)
    progress = save_epochs(folder, 40)
    for step in (2, 4):
        progress.step = step
        save(folder, progress)
    assert names(tmp_path) == ["best.pt", "epoch-0001-step-000004.pt", "epoch-0001.pt"]
    assert folder.newest() == tmp_path / "epoch-0001-step-000004.pt"
    progress.finish_epoch(make_epoch(1, 30))
    save(folder, progress)
    assert names(tmp_path) == ["best.pt", "epoch-0001.pt", "epoch-0002.pt"]


def test_the_time_of_a_job_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    times_s = iter([103.0, 104.5])
    clock = SimpleNamespace(monotonic=times_s.__next__)
    monkeypatch.setattr("trainer_client.reference.saver.time", clock)
    progress = Progress(elapsed_s=5.0, at_s=100.0)
    assert [progress.read_clock(), progress.read_clock()] == [8.0, 9.5]


def test_a_file_keeps_the_one_before_and_offers_it(tmp_path: Path) -> None:
    store = CheckpointFile(tmp_path / "job.pt")
    assert store.newest() is None
    for epoch in (1, 2, 3):
        save(store, Progress(epoch=epoch))
    assert names(tmp_path) == ["job.pt", "job.pt.previous"]
    assert load_checkpoint(tmp_path / "job.pt.previous")["epoch"] == 2
    store.path.write_bytes(store.path.read_bytes()[:-50])
    with pytest.raises(ConfigError, match=r"one before it with --resume .*job\.pt\.previous"):
        load_for_resume(store.path)


def test_checkpoints_of_a_run_that_was_left_are_removed(tmp_path: Path) -> None:
    """After an earlier one was resumed, so that the newest is that of the present run."""
    folder = CheckpointFolder(tmp_path, keep=2)
    save_epochs(folder, 40, 50, 60)
    progress = Progress(epoch=2, step=4, history=[make_epoch(0, 40), make_epoch(1, 50)])
    save(folder, progress)
    assert names(tmp_path) == ["best.pt", "epoch-0002-step-000004.pt", "epoch-0002.pt"]
    assert folder.newest() == tmp_path / "epoch-0002-step-000004.pt"


HOLD = """
import sys, time
from pathlib import Path
from trainer_client.reference.checkpoints import CheckpointFolder
with CheckpointFolder(Path(sys.argv[1]), keep=1).hold(print):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_file_system_without_locks_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NFS without its lock daemon: the job trains all the same."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    lines: list[str] = []
    with CheckpointFolder(tmp_path, keep=1).hold(lines.append):
        pass
    (line,) = lines
    assert line.startswith(f"cannot lock {tmp_path}/lock (No locks available): see that no other")


def test_one_job_at_a_time_saves_to_a_folder_or_file_until_it_dies(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "run" / "checkpoints", keep=1)
    with start("-c", HOLD, folder.folder) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        (folder.folder / "epoch-0001.pt.unfinished").touch()  # which that job is writing
        with pytest.raises(ConfigError) as caught, folder.hold(print):
            pass
        process.kill()
    assert str(caught.value) == (
        f"another job saves to {tmp_path / 'run'}: process {process.pid} on "
        f"{socket.gethostname()}. End that one, or name another folder or file for this one"
    )
    assert names(folder.folder) == ["epoch-0001.pt.unfinished", "lock"]
    with folder.hold(print):
        assert names(folder.folder) == ["lock"]
    file = CheckpointFile(tmp_path / "job.pt")
    with file.hold(print), pytest.raises(ConfigError, match=r"saves to .*job\.pt: process "):
        file.hold(print).__enter__()


def test_a_full_disk_is_named_with_what_the_checkpoint_needs(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=64k") as disk:
        save_checkpoint(disk / "job.pt", {"step": 1})
        with pytest.raises(ResourceError) as caught:
            save_checkpoint(disk / "job.pt", {"step": torch.zeros(100_000)})
        assert str(caught.value) == (
            f"cannot write the checkpoint {disk}/job.pt (no space left on its disk: it needs 0.4 "
            "MB, 0.1 MB are free): make room, or name another --checkpoint or --output"
        )
        assert load_checkpoint(disk / "job.pt")["step"] == 1
        assert [path.name for path in disk.iterdir()] == ["job.pt"]


def test_a_checkpoint_is_synced_before_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, done = tmp_path / "job.pt", []
    replace = Path.replace

    def note(source: Path, target: Path) -> Path:
        done.append("renamed")
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", lambda number: done.append(os.readlink(f"/dev/fd/{number}")))
    monkeypatch.setattr(Path, "replace", note)
    save_checkpoint(path, {"step": 1})
    assert done == [f"{path}.unfinished", "renamed", str(tmp_path)]


@pytest.mark.parametrize(
    "damage", ["empty", "garbage", "cut", "bit", "method", "folder", "version"]
)
def test_invalid_checkpoints_are_refused_in_one_line(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "job.pt"
    save_checkpoint(path, {"step": torch.ones(1000)})
    whole = path.read_bytes()
    bit = whole.replace(torch.ones(2).numpy().tobytes(), torch.tensor([1.0, 2]).numpy().tobytes())
    # In the record's entry of zip's directory: the compression method and the folder attribute.
    entry = whole.rindex(b"PK\1\2", 0, whole.rindex(b"archive/data/0"))
    method, folder = bytearray(whole), bytearray(whole)
    method[entry + 10] = 8
    folder[entry + 38] |= 0x10
    contents = {"empty": b"", "garbage": b"x" * 500, "cut": whole[:-700], "bit": bit}
    contents |= {"method": bytes(method), "folder": bytes(folder)}
    path.write_bytes(contents.get(damage, whole))
    if damage == "version":
        torch.save({"version": 99}, path)
    with pytest.raises(ConfigError, match=r"job.pt is no checkpoint.*: name another") as caught:
        load_checkpoint(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ResourceError, match="cannot read"):
        load_checkpoint(tmp_path / "none")
