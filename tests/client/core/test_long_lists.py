"""The client's session with more feeders than it has links to."""

import pytest

from feeder.client.core.events import EndpointsListed, Instruction
from feeder.client.core.links import LEFT_OUT_S, LINKS_MAX, LONG_LIST_WINDOW, SPARES
from feeder.client.core.owners import Ownership
from feeder.client.core.prefetch import BatchSequence
from feeder.errors import ProtocolError
from feeder.plan.recipe import Recipe
from feeder.wire.messages import Failed, Hello
from tests.support.client_shell import Shell, asked, hello, prefer, sends, welcome

FEEDERS = 200
ENDPOINTS = tuple(f"tcp://f{number}:1" for number in range(FEEDERS))
NAMES = {endpoint: endpoint[6:-2] for endpoint in ENDPOINTS}
RECIPE = Recipe.for_split("train", batch_size=4, image_size=8, lanes=400)
SAMPLES = 4 * 800
FIELDS = {
    "samples": SAMPLES,
    "batches": 800,
    "lanes": 400,
    "recipe_fingerprint": RECIPE.fingerprint(),
}


class Cluster(Shell):
    """A client of 200 feeders, all of which answer at once."""

    def __init__(self, *, buffers: int = 4, world_size: int = 1) -> None:
        super().__init__(buffers=buffers, window=4, recipe=RECIPE)
        self.owned = self.requested = 0
        self.met: set[str] = set()
        self.do(EndpointsListed(NAMES))
        self.greet_all()
        self.session.begin(BatchSequence(0, range(0, 800, world_size)))
        self.preference = prefer(hello(recipe=RECIPE), NAMES.values(), **FIELDS)

    def greet_all(self) -> list[Instruction]:
        """Connect and welcome the new links, until there are none."""
        done: list[Instruction] = []
        while new := [link for link in self.links if link not in self.sessions()]:
            for link in new:
                done += self.connect(link)
                done += self.receive(self.welcome(link), link)
        return done

    def sessions(self) -> set[int]:
        return {
            link.number
            for link in self.session.links.by_number.values()
            if link.session is not None
        }

    def welcome(self, link: int, **fields: object) -> object:
        name = NAMES[self.links[link]]
        self.met.add(name)
        incarnation = int(name[1:]) + 1
        given = FIELDS | {"node": f"{name}/0", "incarnation": incarnation} | fields
        return welcome(link + 1, **given)  # type: ignore[arg-type]

    def step(self) -> None:
        """Have all requests answered, and the consumer take what is complete."""
        out = self.do()
        while True:
            out += self.greet_all()
            requests = [(link, key) for link in self.sessions() for key in asked(out, link)]
            out = []
            for link, (epoch, index) in requests:
                self.requested += 1
                owner = self.preference.order((epoch, index))[0]
                self.owned += NAMES[self.links[link]] == owner
                out += self.answer(index, link, session=link + 1, epoch=epoch)
            if not requests:
                break
        self.take_keys()


def test_links_are_few_and_requests_reach_the_owners() -> None:
    cluster = Cluster()
    assert len(cluster.links) == SPARES
    for _ in range(60):
        cluster.step()
        assert len(cluster.links) <= LINKS_MAX
    assert len(cluster.links) == LINKS_MAX
    assert cluster.requested > 200
    assert cluster.owned > 0.95 * cluster.requested
    assert len(cluster.met) > 2 * LINKS_MAX, "it has gone round"


def test_sessions_of_a_long_list_have_small_windows() -> None:
    shell = Shell(*ENDPOINTS, window=4)
    out = shell.connect(0)
    (greeting,) = (each for each in sends(out, 0) if isinstance(each, Hello))
    assert greeting.window == LONG_LIST_WINDOW
    short = Shell(*ENDPOINTS[:3], window=4)
    (greeting,) = (each for each in sends(short.connect(0), 0) if isinstance(each, Hello))
    assert greeting.window == 4


def test_another_feeder_is_asked_while_an_owner_is_away() -> None:
    cluster = Cluster()
    for _ in range(10):
        cluster.step()
    key = cluster.prefetch.coming(1)[0]
    owner, heir = cluster.preference.order(key)[:2]
    link = next(n for n, endpoint in cluster.links.items() if NAMES[endpoint] == owner)
    cluster.lose(link)
    cluster.lose(link)
    cluster.do()
    assert heir in {NAMES[endpoint] for endpoint in cluster.links.values()}


def test_a_feeder_of_other_libraries_is_left_out_when_it_is_met_and_not_dialled_again() -> None:
    cluster = Cluster()
    cluster.step()
    link = next(iter(cluster.sessions()))
    endpoint = cluster.links[link]
    cluster.lose(link)
    cluster.connect(link)
    cluster.receive(cluster.welcome(link, self_test="6" * 32), link)  # type: ignore[arg-type]
    assert len(cluster.warnings) == 1
    assert f"left out: {endpoint}" in cluster.warnings[0]
    assert len(cluster.session.links.left_out) == 1
    for _ in range(40):
        cluster.step()
        assert endpoint not in cluster.links.values()
    cluster.do_at(cluster.now_s + LEFT_OUT_S)
    assert endpoint in cluster.session.links.find_usable(cluster.now_s)


def test_a_list_that_becomes_short_is_linked_whole_with_whole_windows() -> None:
    cluster = Cluster()
    cluster.step()
    cluster.do(EndpointsListed({e: NAMES[e] for e in ENDPOINTS[:20]}))
    out = cluster.greet_all()
    assert sorted(cluster.links.values()) == sorted(ENDPOINTS[:20])
    greetings = [each for link in cluster.links for each in sends(out, link)]
    assert {each.window for each in greetings if isinstance(each, Hello)} == {4}
    cluster.do(EndpointsListed(NAMES))
    assert SPARES <= len(cluster.links) <= LINKS_MAX


def test_other_spares_are_tried_while_the_first_ones_do_not_answer() -> None:
    shell = Shell(*ENDPOINTS, recipe=RECIPE)
    refusing, silent = list(shell.links)[:2], list(shell.links)[2:]
    for link in refusing:
        shell.lose(link)
    assert len(shell.links) == SPARES + 2, "the others may still answer"
    for link in silent:
        shell.lose(link)  # after connection.CONNECT_MS
    assert len(shell.links) == 2 * SPARES
    assert set(shell.links) >= {*refusing, *silent}, "they may come back"
    for _ in range(25):
        for link in list(shell.links):
            shell.lose(link)
    assert len(shell.links) <= LINKS_MAX


def test_a_feeder_that_was_left_out_is_forgotten_with_its_line() -> None:
    cluster = Cluster()
    cluster.step()
    link = next(iter(cluster.sessions()))
    gone = cluster.links[link]
    cluster.find_incompatibility(ProtocolError("it is none"), link)
    assert cluster.session.links.left_out.keys() == {gone}
    cluster.do(EndpointsListed({e: name for e, name in NAMES.items() if e != gone}))
    assert not cluster.session.links.left_out


def test_two_feeders_of_one_name_share_the_work_and_are_reported_once() -> None:
    shell = Shell("tcp://a:1", "tcp://b:1", window=8, buffers=8)
    for _ in range(2):
        for link in (0, 1):
            shell.lose(link)
            shell.connect(link)
            shell.receive(welcome(link + 1, node="same/0", incarnation=link + 5, window=8), link)
    assert shell.warnings == [
        "two feeders have the name 'same/0', tcp://a:1 and tcp://b:1: they own the same lanes; "
        "give each a serve.name of its own"
    ]
    shell.session.begin(BatchSequence(0, range(10)))
    out = shell.do()
    assert asked(out, 0)
    assert asked(out, 1)
    first = 0 if (0, 0) in asked(out, 0) else 1
    reason = Failed(session=first + 1, epoch=0, index=0, code="dataset", message="its disk")
    assert (0, 0) in asked(shell.receive(reason, first), 1 - first), "it stands in for the other"


def test_lanes_are_owned_by_the_lists_names_not_by_the_nodes_own() -> None:
    names = {"tcp://a:1": "one", "tcp://b:1": "two"}
    shell = Shell(window=8)
    shell.do(EndpointsListed(names))
    for link, node in enumerate(("renumbered-7", "renumbered-9")):
        shell.connect(link)
        shell.receive(welcome(link + 1, node=node, window=8), link)
    shell.session.begin(BatchSequence(0, range(10)))
    out, ownership = shell.do(), Ownership(names.values(), 1)
    for link, name in enumerate(names.values()):
        assert asked(out, link)
        assert all(ownership.order(0, index)[0] == name for _, index in asked(out, link))


def test_the_job_ends_when_all_feeders_of_a_long_list_are_left_out() -> None:
    cluster = Cluster()
    cluster.step()
    left_out = 0
    while cluster.session.error is None:
        assert cluster.links, "there is none to wait for"
        for link in list(cluster.links):
            cluster.find_incompatibility(ProtocolError("it is none"), link)
            left_out += 1
        cluster.do()
    assert left_out == FEEDERS
    with pytest.raises(ProtocolError, match="it is none"):
        cluster.session.check()
