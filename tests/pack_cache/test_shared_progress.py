"""The progress of a packing as text, and in the lock that it holds."""

import io

import pytest

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


def test_durations_have_one_unit() -> None:
    texts = [round_duration(seconds) for seconds in (4.2, 89, 300, 89 * 60, 3 * 3600)]
    assert texts == ["4 s", "89 s", "5 min", "89 min", "3 h"]
