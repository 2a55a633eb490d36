"""How long the consumer has waited for each node."""

from hypothesis import given
from hypothesis import strategies as st

from feeder.client.core.waits import WaitClock

steps = st.lists(
    st.tuples(
        st.sampled_from(["begin", "advance", "end"]),
        st.floats(0, 5),
        st.lists(st.integers(0, 2), unique=True),
    ),
    max_size=40,
)


@given(steps=steps, late_s=st.floats(0, 5))
def test_totals_only_grow_and_never_by_more_than_was_waited(
    steps: list[tuple[str, float, list[int]]], late_s: float
) -> None:
    """A turn of the client begins with the time of the turn before, so that time may lag."""
    clock, now_s, before, waited_s = WaitClock(), 0.0, [0.0] * 3, 0.0
    is_waiting = False
    for name, seconds, links in steps:
        now_s += seconds
        waited_s += seconds if is_waiting else 0.0
        if name == "begin":
            clock.begin(now_s)
        elif name == "advance":
            clock.advance(max(0.0, now_s - late_s), links)
        else:
            clock.end(now_s, links)
        is_waiting = {"begin": True, "end": False}.get(name, is_waiting)
        totals = [clock.total_s(link) for link in range(3)]
        assert all(old <= new for old, new in zip(before, totals, strict=True))
        assert all(total <= waited_s + 1e-9 for total in totals)
        before = totals


def test_a_wait_counts_for_the_links_that_were_awaited_at_the_time() -> None:
    clock = WaitClock()
    clock.advance(5.0, [1])
    assert clock.total_s(1) == 0.0, "nobody waits"
    clock.begin(10.0)
    clock.advance(12.0, [1])
    clock.advance(13.0, [1, 2])
    clock.end(17.0, [2])
    clock.advance(20.0, [1, 2])
    assert (clock.total_s(1), clock.total_s(2)) == (3.0, 5.0)
    clock.forget(1)
    assert clock.total_s(1) == 0.0
