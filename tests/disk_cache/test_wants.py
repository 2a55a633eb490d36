"""What is fetched next, and when it is answered: no store, no disk, no clock."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.disk_cache.messages import Absent, Here
from feeder.disk_cache.ranges import Range, split_pieces
from feeder.disk_cache.wants import Task, Wants

PIECE = 10
PATIENCE_S = 30.0


class Pieces:
    """A dataset of 10 pieces of 10 samples, of which nothing is there."""

    def __init__(self) -> None:
        self.piece = PIECE
        self.samples_there = np.zeros(100, np.uint8)

    def range_of(self, piece: int) -> Range:
        return piece * PIECE, (piece + 1) * PIECE


class Shell:
    """Wants of one dataset, with a transfer that does what a test says."""

    def __init__(self) -> None:
        self.pieces = Pieces()
        self.wants = Wants({"d": self.pieces}, PATIENCE_S)

    def want(
        self,
        number: int,
        *ranges: Range,
        at_s: float = 0.0,
        whole: bool = True,
        doubted: bool = False,
    ) -> None:
        self.wants.want(1, number, "d", ranges, at_s, whole=whole, doubted=doubted)

    def ahead(self, *ranges: Range) -> None:
        self.wants.ahead("d", split_pieces(ranges, PIECE))

    def take(self, at_s: float = 0.0) -> Task:
        task = (
            self.wants.take_wanted(at_s, whole=True)
            or self.wants.take_wanted(at_s, whole=False)
            or self.wants.take_ahead(at_s, ())
        )
        assert task is not None
        return task

    def finish(self, task: Task) -> None:
        for first, end in task.ranges:
            self.pieces.samples_there[first:end] = 1
        self.wants.done(task)

    def tasks(self) -> Iterator[Task]:
        """Take tasks, and finish each after the caller has seen it."""
        while True:
            try:
                task = self.take()
            except AssertionError:
                return
            yield task
            self.finish(task)

    def answers(self) -> list[int | tuple[int, str]]:
        answers, self.wants.answers = self.wants.answers, []
        return [
            (answer.number, answer.kind) if isinstance(answer, Absent) else answer.number
            for _, answer in answers
        ]


@pytest.fixture
def shell() -> Shell:
    return Shell()


def test_what_is_there_is_answered_at_once(shell: Shell) -> None:
    shell.pieces.samples_there[:20] = 1
    shell.want(1, (0, 20))
    assert shell.wants.answers == [(1, Here(1))]
    assert shell.wants.waiting == 0


def test_wants_come_in_order_before_aheads(shell: Shell) -> None:
    shell.ahead((70, 90))
    shell.want(1, (3, 4), (25, 26))
    shell.want(2, (55, 56))
    order = [(task.key[1], task.is_wanted) for task in shell.tasks()]
    assert order == [(0, True), (2, True), (5, True), (7, False), (8, False)]
    assert shell.answers() == [1, 2]


def test_an_ahead_that_becomes_wanted_is_promoted_and_fetched_once(shell: Shell) -> None:
    shell.ahead((70, 80), (80, 90))
    shell.want(1, (85, 86))
    assert [task.key[1] for task in shell.tasks()] == [8, 7]


def test_a_piece_that_several_wait_for_is_fetched_once(shell: Shell) -> None:
    shell.want(1, (3, 4))
    task = shell.take()
    shell.want(2, (5, 6))
    assert shell.wants.take_wanted(0.0, whole=True) is None
    shell.finish(task)
    assert shell.answers() == [1, 2]


def test_single_samples_are_fetched_alone_unless_the_piece_is_wanted(shell: Shell) -> None:
    shell.want(1, (3, 4), (5, 6), (15, 16), whole=False)
    shell.want(2, (5, 7), whole=False)
    shell.want(3, (17, 18))
    tasks = {task.key[1]: task.ranges for task in shell.tasks()}
    assert tasks == {0: ((3, 4), (5, 7)), 1: ((10, 20),)}
    assert sorted(shell.answers(), key=str) == [1, 2, 3]


def test_a_want_for_more_than_is_in_flight_waits_again(shell: Shell) -> None:
    shell.want(1, (3, 4), whole=False)
    task = shell.take()
    shell.want(2, (0, 10))
    shell.finish(task)
    assert shell.answers() == [1]
    assert shell.take().ranges == ((0, 10),)


def test_what_is_forgotten_is_not_fetched_and_not_answered(shell: Shell) -> None:
    shell.want(1, (3, 4))
    shell.want(2, (15, 16))
    task = shell.take()
    shell.wants.forget(1, 1)
    shell.wants.forget(1, 2)
    shell.finish(task)
    assert list(shell.tasks()) == []
    assert shell.answers() == []
    assert shell.wants.waiting == 0


def test_a_lost_connection_takes_its_wants_along(shell: Shell) -> None:
    shell.want(1, (3, 4))
    shell.wants.want(2, 1, "d", ((3, 4), (15, 16)), 0.0, whole=True)
    shell.wants.forget_all(2)
    assert [task.key[1] for task in shell.tasks()] == [0]
    assert shell.wants.answers == [(1, Here(1))]


def test_an_ahead_that_is_dropped_is_not_fetched(shell: Shell) -> None:
    shell.ahead((70, 80), (80, 90))
    shell.wants.drop_ahead([("d", 7)])
    assert [task.key[1] for task in shell.tasks()] == [8]


def test_a_task_put_back_is_the_next_one(shell: Shell) -> None:
    shell.want(1, (3, 4))
    shell.want(2, (15, 16))
    task = shell.take()
    shell.wants.put_back(task)
    assert shell.take() == task


def test_a_final_error_fails_all_that_wait_for_the_piece(shell: Shell) -> None:
    shell.want(1, (3, 4), (15, 16))
    shell.want(2, (4, 5))
    shell.want(3, (16, 17))
    task = shell.take()
    failed = shell.wants.failed(task, "denied", "no", 0.0, is_transient=False)
    assert failed == 2
    assert shell.answers() == [(1, "denied"), (2, "denied")]
    assert [task.key[1] for task in shell.tasks()] == [1]
    assert shell.answers() == [3]


def test_a_final_error_fails_none_whose_samples_have_come(shell: Shell) -> None:
    shell.want(1, (3, 4))
    shell.want(2, (4, 5), (15, 16))
    task = shell.take()
    shell.pieces.samples_there[4:10] = 1  # all but the damaged ones
    assert shell.wants.failed(task, "damaged", "no", 0.0, is_transient=False) == 1
    assert shell.answers() == [(1, "damaged")]
    shell.finish(shell.take())
    assert shell.answers() == [2]


def test_a_check_that_fails_is_not_repeated_by_itself(shell: Shell) -> None:
    shell.pieces.samples_there[:] = 1
    shell.want(1, (3, 4), doubted=True)
    check = shell.wants.take_doubted(0.0)
    assert check is not None
    shell.wants.failed(check, "disk-failing", "no", 0.0, is_transient=False)
    assert shell.answers() == [(1, "disk-failing")]
    assert shell.wants.take_doubted(0.0) is None


def test_after_the_stores_patience_only_those_that_waited_as_long_fail(shell: Shell) -> None:
    shell.ahead((0, 10), (70, 80))
    ahead = shell.take(at_s=0.0)
    shell.want(1, (3, 4), at_s=20.0)
    shell.want(2, (25, 26), at_s=0.0)
    shell.wants.failed(ahead, "unreachable", "away", 30.0, is_transient=True)
    assert shell.answers() == [(2, "unreachable")], "the first one has waited for 10 s only"
    task = shell.take(at_s=30.0)
    assert task.key[1] == 0
    shell.wants.failed(task, "unreachable", "away", 60.0, is_transient=True)
    assert shell.answers() == [(1, "unreachable")]
    assert [task.key[1] for task in shell.tasks()] == [7, 0], "aheads stay"


def test_no_want_of_a_doubted_piece_is_answered_before_it_was_checked(shell: Shell) -> None:
    shell.pieces.samples_there[:] = 1
    shell.want(1, (3, 4), doubted=True)
    assert shell.answers() == []
    check = shell.wants.take_doubted(0.0)
    assert check is not None
    assert check.ranges == ()
    assert shell.wants.take_doubted(0.0) is None
    shell.want(2, (4, 5))
    assert shell.answers() == []
    shell.pieces.samples_there[3] = 0  # the check takes it back
    shell.wants.done(check)
    assert shell.answers() == [2]
    shell.finish(shell.take())
    assert shell.answers() == [1]


def test_a_piece_doubted_in_flight_is_checked_before_it_is_answered(shell: Shell) -> None:
    shell.want(1, (3, 4))
    task = shell.take()
    shell.want(2, (4, 5), doubted=True)
    shell.finish(task)
    assert shell.answers() == []
    check = shell.wants.take_doubted(0.0)
    assert check is not None
    shell.wants.done(check)
    assert shell.answers() == [1, 2]


def test_what_is_doubted_while_it_is_checked_is_checked_again(shell: Shell) -> None:
    shell.pieces.samples_there[:] = 1
    shell.want(1, (3, 4), doubted=True)
    first = shell.wants.take_doubted(0.0)
    shell.want(2, (4, 5), doubted=True)
    assert first is not None
    shell.wants.done(first)
    assert shell.answers() == []
    second = shell.wants.take_doubted(0.0)
    assert second is not None
    shell.wants.done(second)
    assert shell.answers() == [1, 2]


def test_what_waits_or_is_in_flight_is_held(shell: Shell) -> None:
    shell.ahead((70, 80))
    task = shell.take()
    shell.want(1, (3, 4), (15, 16))
    assert sorted(shell.wants.held("d")) == [0, 1, 7]
    shell.finish(task)
    assert sorted(shell.wants.held("d")) == [0, 1]


@given(st.data())
def test_every_want_is_answered_once_whatever_happens(data: st.DataObject) -> None:
    shell = Shell()
    in_flight: list[Task] = []
    asked, answered = set(), []
    for number in range(data.draw(st.integers(1, 30))):
        match data.draw(st.integers(0, 5)):
            case 0 | 1:
                first = data.draw(st.integers(0, 99))
                end = data.draw(st.integers(first + 1, 100))
                whole, doubted = data.draw(st.booleans()), data.draw(st.booleans())
                shell.want(number, (first, end), whole=whole, doubted=doubted)
                asked.add(number)
            case 2:
                first = data.draw(st.integers(0, 90))
                shell.ahead((first, first + 10))
            case 3:
                task = shell.wants.take_doubted(0.0)
                in_flight += [task] if task else []
            case 4:
                in_flight += [task for task in [shell.wants.take_wanted(0.0, whole=True)] if task]
            case 5 if in_flight:
                task = in_flight.pop(data.draw(st.integers(0, len(in_flight) - 1)))
                if data.draw(st.booleans()):
                    shell.wants.failed(task, "gone", "it is gone", 0.0, is_transient=False)
                else:
                    shell.finish(task)
        keys = [task.key for task in in_flight]
        assert len(keys) == len(set(keys))
        answered += shell.answers()
    for task in in_flight:
        shell.finish(task)
    for _ in shell.tasks():
        pass
    while (check := shell.wants.take_doubted(0.0)) is not None:
        shell.finish(check)
        for _ in shell.tasks():
            pass
    answered += shell.answers()
    numbers = [answer if isinstance(answer, int) else answer[0] for answer in answered]
    assert sorted(numbers) == sorted(asked)
    assert shell.wants.waiting == 0
    assert shell.wants.queued == 0
