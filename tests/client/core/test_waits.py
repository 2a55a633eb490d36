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


@given(steps=steps)
def test_totals_only_grow_and_never_by_more_than_the_time(
    steps: list[tuple[str, float, list[int]]],
) -> None:
    clock, now_s, before = WaitClock(), 0.0, [0.0] * 3
    for name, seconds, links in steps:
        now_s += seconds
        clock.begin(now_s) if name == "begin" else getattr(clock, name)(now_s, links)
        totals = [clock.total_s(link) for link in range(3)]
        assert all(old <= new for old, new in zip(before, totals, strict=True))
        assert all(total <= now_s + 1e-9 for total in totals)
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
