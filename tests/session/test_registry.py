"""What sessions use is counted as they come and go."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from feeder.session.admission import Usage
from feeder.session.state import SessionRegistry
from tests.support.session_shell import make_session

ACCOUNTS = ("alice", "bob")


def counted(registry: SessionRegistry, account: str | None) -> Usage:
    """What the registry should count, from all sessions."""
    opened, ended = (
        [each for each in sessions.values() if account in (None, each.account)]
        for sessions in (registry.open, registry.ended)
    )
    return Usage(
        open=len(opened),
        ended=len(ended),
        slots_bytes=sum(each.layout.total_bytes for each in (*opened, *ended)),
        recipes=Counter((each.hello.dataset, each.hello.recipe) for each in opened),
    )


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["add", "end", "forget"]),
            st.sampled_from(ACCOUNTS),
            st.sampled_from([8, 16]),
        ),
        max_size=40,
    )
)
def test_use_is_that_of_the_sessions_that_are_there(steps: list[tuple[str, str, int]]) -> None:
    registry = SessionRegistry()
    for number, (step, account, size) in enumerate(steps):
        if step == "add":
            registry.add(make_session(number, account, image_size=size))
        elif step == "end" and registry.open:
            registry.end(next(iter(registry.open.values())))
        elif step == "forget":
            registry.forget(next(iter(registry.ended), -1))
        assert registry.used == counted(registry, None)
        for account in ACCOUNTS:
            assert registry.used_by(account) == counted(registry, account)
    for left in list(registry.open.values()):
        registry.end(left)
    for ended in list(registry.ended):
        registry.forget(ended)
    assert registry.used == Usage()
    assert not registry._used_by_account, "nothing is kept of clients that are gone"
