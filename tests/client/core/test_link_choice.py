"""Which feeders of a long list a client keeps links to."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from feeder.client.core.feeders import LINKS_MAX, SPARES, LinkChoice, limit_links
from feeder.client.core.prefetch import Prefetch
from tests.support.client_shell import RECIPE

FEEDERS = tuple(f"f{number:04}" for number in range(300))


@given(
    wanted=st.lists(st.lists(st.sampled_from(FEEDERS), max_size=80), max_size=6),
    avoided=st.sets(st.sampled_from(FEEDERS), max_size=40),
    limit=st.integers(SPARES + 1, 90),
    rank=st.integers(0, 5000),
)
def test_the_choice_is_bounded_and_has_what_is_wanted_first(
    wanted: list[list[str]], avoided: set[str], limit: int, rank: int
) -> None:
    choice = LinkChoice(rank)
    for names in wanted:
        chosen = choice.choose(FEEDERS, names, avoided, limit)
        assert len(chosen) <= limit
        assert chosen <= set(FEEDERS) - avoided
        first = [name for name in dict.fromkeys(names) if name not in avoided]
        assert chosen >= set(first[: limit - SPARES])


def test_spares_are_dealt_out_evenly_over_ranks() -> None:
    dealt = Counter(
        name for rank in range(1000) for name in LinkChoice(rank).choose(FEEDERS, (), (), 64)
    )
    assert set(dealt) == set(FEEDERS)
    assert max(dealt.values()) - min(dealt.values()) <= 1


def test_the_least_recently_used_go_first() -> None:
    choice = LinkChoice(0)
    spares = choice.choose(FEEDERS, (), (), 8)
    for number in range(100, 110):
        chosen = choice.choose(FEEDERS, (FEEDERS[number],), (), 8)
    assert chosen == spares | set(FEEDERS[105:110])
    assert FEEDERS[104] in choice.choose(FEEDERS, (FEEDERS[104],), (), 8)


def test_a_feeder_that_left_the_list_is_not_chosen_again() -> None:
    choice = LinkChoice(0)
    assert FEEDERS[200] in choice.choose(FEEDERS, (FEEDERS[200],), (), 8)
    assert FEEDERS[200] not in choice.choose(FEEDERS[:100], (), (), 8)


def test_a_job_of_2048_ranks_has_few_sessions_at_each_feeder() -> None:
    for feeders in (64, 256, 1024):
        limit = limit_links(feeders, Prefetch(RECIPE, buffers=7, world_size=2048))
        assert limit * 2048 / feeders <= 512
    assert limit_links(256, Prefetch(RECIPE, buffers=7)) == LINKS_MAX
    assert limit_links(16, Prefetch(RECIPE, buffers=7, world_size=2048)) == 7 + SPARES, (
        "one for each buffer"
    )
