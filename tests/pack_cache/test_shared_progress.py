"""The progress of a packing as text, and in the lock that it holds."""

import io
from pathlib import Path

import pytest

from feeder.pack_cache.entry import CacheEntry
from feeder.pack_cache.shared_progress import SharedProgress, round_duration


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def progress(clock: Clock) -> SharedProgress:
    return SharedProgress(io.StringIO(), clock)


def test_the_text_says_what_is_packed_how_far_and_for_how_long(
    progress: SharedProgress, clock: Clock
) -> None:
    texts = []
    progress.begin_source("imagenet", 1, 1)
    texts.append(progress.text)
    progress.advance("looking at its files: 4,096 so far")
    texts.append(progress.text)
    progress.begin("listing", "items", None)
    progress.add(1234)
    texts.append(progress.text)
    progress.begin("packing", "images", 1000)
    texts.append(progress.text)
    clock.now_s = 100.0
    progress.add(250)
    texts.append(progress.text)
    progress.add(750)
    texts.append(progress.text)
    progress.begin_source("val", 2, 2)
    progress.begin("comparing", "files", 4)
    texts.append(progress.text)
    assert texts == [
        "packing imagenet, looking at its files",
        "packing imagenet, looking at its files: 4,096 so far",
        "packing imagenet, listing 1,234 items",
        "packing imagenet, 0 %",
        "packing imagenet, 25 %, 5 min left",
        "packing imagenet, 100 %",
        "packing val (2 of 2), comparing files, 0 %",
    ]


def test_a_packing_that_starts_over_passes_no_number_twice(clock: Clock) -> None:
    def run(done: int) -> list[int]:
        progress, numbers = SharedProgress(io.StringIO(), clock), []
        for source in (1, 2):
            progress.begin_source("d", source, 2)
            numbers.append(progress.advances)
            progress.begin("listing", "items", None)
            progress.add(1000)
            progress.begin("packing", "images", 1000, done)
            numbers.append(progress.advances)
            progress.add(1000 - done)
            numbers.append(progress.advances)
        assert numbers == sorted(set(numbers))
        assert [number // 10**11 for number in numbers] == [1, 1, 1, 2, 2, 2], "source by source"
        return numbers

    first, again = run(0), run(400)
    assert again[1] == first[1] + 400, "those of the earlier run count"
    assert again[2] == first[2]
    assert max(first) < 2**48, "which the wire takes"


def test_a_start_that_waits_shows_the_progress_of_the_packing(
    progress: SharedProgress, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.pack_cache.entry._LOCK_POLL_S", 0.0)
    entry, written = CacheEntry(tmp_path, "/data/images"), io.StringIO()
    holder = SharedProgress(io.StringIO(), clock)
    progress = SharedProgress(written, clock)
    progress.begin_source("d", 1, 1)
    texts, advances = [], []

    def look() -> None:
        texts.append(progress.text)
        advances.append(progress.advances)
        match len(texts):
            case 1:
                holder.begin("packing", "images", 100)
            case 2:
                clock.now_s += 10.0
                holder.add(20)
            case 4:
                locked.__exit__(None, None, None)

    monkeypatch.setattr("feeder.pack_cache.entry.time.sleep", lambda seconds: look())
    locked = entry.locked(holder)
    locked.__enter__()
    with entry.locked(progress):
        pass
    here = "packing d, waiting for process "
    assert all(text.startswith(here) for text in texts)
    assert texts[2] == texts[3]
    assert texts[2].endswith(": 20 %, 40 s left")
    assert advances[2] == advances[1] + 1 == advances[3], "it stands still without an advance"
    assert written.getvalue().startswith("feeder: waiting for the packing of /data/images by pro")


def test_durations_have_one_unit() -> None:
    texts = [round_duration(seconds) for seconds in (4.2, 89, 300, 89 * 60, 3 * 3600)]
    assert texts == ["4 s", "89 s", "5 min", "89 min", "3 h"]
