"""The progress line: its content, on terminals and in logs."""

import io

from feeder.pack.progress import ProgressLine


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_rate_and_remaining_time_ignore_work_of_earlier_runs() -> None:
    clock = _Clock()
    line = ProgressLine(io.StringIO(), clock)
    line.begin("packing", "images", 1000, done=400)
    clock.now_s += 10
    line.add(200, 22_000_000, quarantined=3)
    assert line.line() == (
        "packing 600/1,000 images (60 %), 20 images/s, 2.2 MB/s, 3 quarantined, 0:20 left"
    )


def test_terminal_is_redrawn_in_place_and_logs_get_few_lines() -> None:
    for stream, expected in ((_Terminal(), 51), (io.StringIO(), 2)):
        clock = _Clock()
        line = ProgressLine(stream, clock)
        line.begin("packing", "images", 100)
        for _ in range(100):
            clock.now_s += 0.11  # eleven seconds in all
            line.add(1)
        line.end()
        text = stream.getvalue()
        assert text.count("packing") == expected
        assert text.count("\n") == (1 if stream.isatty() else expected)
        assert text.count("\r") == (expected if stream.isatty() else 0)


def test_notes_replace_a_drawn_line() -> None:
    clock = _Clock()
    stream = _Terminal()
    line = ProgressLine(stream, clock)
    line.begin("packing", "images", 2)
    line.note("before")
    clock.now_s += 1
    line.add(1)
    line.note("between")
    text = stream.getvalue()
    assert text.startswith("before\n\rpacking 1/2")
    assert text.endswith("\r\x1b[Kbetween\n")
