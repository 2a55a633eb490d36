"""A source that is replaced while it is packed is an error that names a file of it."""

import contextlib
import functools
import os
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from feeder.dataset.manifest import MANIFEST_NAME
from feeder.errors import ConfigError
from feeder.pack.task_pool import Messages, RunTasks, run_tasks
from feeder.source.location.storage import SourceChangedError
from tests.faults.changed_source import KINDS, PARTS, WAYS, Attack, run_and_act
from tests.support.sources import run_here


def run_that(act: Callable[[], object], after: int) -> RunTasks:
    return functools.partial(run_and_act, act, after)


def check_refused(attack: Attack, change: SourceChangedError) -> None:
    """Check that the error names a file and a remedy, and that nothing is published or resumed."""
    text = str(change)
    assert text.startswith(f"{attack.source}/")
    assert "has changed since it was listed (it was written again or replaced): wait until" in text
    assert f"; if that refuses to resume, remove {attack.packed} first" in text
    assert "\n" not in text
    assert not (attack.packed / MANIFEST_NAME).exists()
    with pytest.raises(ConfigError, match=r"the source has changed|the classes were others"):
        attack.pack()


@pytest.mark.parametrize(("kind", "after"), [*zip(KINDS, cycle([0, PARTS - 1]), strict=False)])
def test_a_source_replaced_after_a_part_is_an_error(kind: str, after: int, tmp_path: Path) -> None:
    way = WAYS[(list(KINDS).index(kind) + after) % len(WAYS)]
    attack = Attack(kind, tmp_path, way=way, keeps_times=True)
    with pytest.raises(SourceChangedError) as caught:
        attack.pack(run_that(attack.replace, after))
    check_refused(attack, caught.value)


@pytest.mark.parametrize("kind", ["class-folder", "webdataset", "parquet"])
def test_a_source_replaced_after_listing_is_an_error(kind: str, tmp_path: Path) -> None:
    """What a worker process raises arrives as it was raised."""
    way = WAYS[(list(KINDS).index(kind) + 1) % len(WAYS)]
    attack = Attack(kind, tmp_path, way=way, keeps_times=True)

    def replace_first(*arguments: Any, **named: Any) -> Messages:
        attack.replace()
        return (run_tasks if kind == "webdataset" else run_here)(*arguments, **named)

    with pytest.raises(SourceChangedError) as caught:
        attack.pack(replace_first)
    check_refused(attack, caught.value)


@pytest.mark.parametrize("kind", ["class-folder", "webdataset", "tfrecord", "parquet", "lmdb"])
@pytest.mark.parametrize("at", range(3))
def test_a_source_replaced_while_one_file_is_opened_is_not_mixed(
    kind: str, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its listing begins, for example; all files are back at once, and as they were."""
    attack = Attack(kind, tmp_path, way="folder", keeps_times=True)
    expected = attack.expected()
    real_open = os.open
    opened = 0

    def swap_folders() -> None:
        attack.source.rename(attack.folder / "away")
        attack.other.rename(attack.source)
        (attack.folder / "away").rename(attack.other)

    def open_other(path: str | bytes | Path, *arguments: int, **named: int) -> int:
        nonlocal opened
        opened += os.fsencode(path).startswith(os.fsencode(attack.source) + b"/")
        if opened != at + 1:
            return real_open(path, *arguments, **named)
        opened += 1
        swap_folders()
        try:
            return real_open(path, *arguments, **named)
        finally:
            swap_folders()

    monkeypatch.setattr(os, "open", open_other)
    samples = expected[0]
    with contextlib.suppress(SourceChangedError):
        samples = attack.pack()
    assert samples == expected[0]
    assert opened > at


def test_a_file_that_is_gone_or_comes_is_no_bad_image(tmp_path: Path) -> None:
    attack = Attack("class-folder", tmp_path, way="files", keeps_times=False)
    path = next(attack.source.rglob("*.bmp"))
    with pytest.raises(SourceChangedError, match=rf"{path.name} has changed .*\(it is gone\)"):
        attack.pack(run_that(path.unlink, 0))
    attack = Attack("class-folder", tmp_path / "more", way="files", keeps_times=False)
    path = next(attack.source.rglob("*.bmp"))
    path.rename(tmp_path / "later.bmp")
    path.symlink_to(tmp_path / "late.bmp")
    with pytest.raises(SourceChangedError, match=r"has changed .*\(there was no such file\)"):
        attack.pack(run_that(lambda: (tmp_path / "later.bmp").rename(tmp_path / "late.bmp"), 3))
