"""A stand-in for the shell of the client's session, with a clock that the test sets."""

from collections.abc import Iterable, Sequence

from feeder.client.core import events
from feeder.client.core.links import Job
from feeder.client.core.owners import Preference
from feeder.client.core.prefetch import Prefetch
from feeder.client.core.requests import RequestScheduler
from feeder.client.core.session import ClientSession
from feeder.plan.recipe import Recipe
from feeder.wire.messages import (
    BatchKey,
    Chunk,
    ClientMessage,
    Hello,
    Lent,
    NodeMessage,
    Request,
    Welcome,
)

NAME = "the feeders"
RECIPE = Recipe.for_split("train", batch_size=4, image_size=8)
IDLE_TURNS_MAX = 3  # turns of the clock at one instant without an instruction: more is a busy loop


def hello(window: int = 2, recipe: Recipe = RECIPE) -> Hello:
    return Hello(dataset="birds", recipe=recipe, seed=7, window=window, client="me")


def welcome(session: int = 1, *, node: str = "n", **fields: object) -> Welcome:
    """Return a node's welcome to a dataset of ten batches, one lane unless ``fields`` differ."""
    values: dict[str, object] = {
        "dataset": "birds",
        "content": "f1",
        "recipe_fingerprint": RECIPE.fingerprint(),
        "classes": ("a", "b"),
        "samples": 40,
        "batches": 10,
        "shards": 1,
        "lanes": 1,
        "working_set": fields.get("samples", 40),
        "piece": 1,
        "window": 2,
        "chunk_images": 4,
        "number": 0,
        "incarnation": sum(node.encode()),
        "siblings": (),
        "feeder_version": "0.1",
        "self_test": "5" * 32,
        "libraries": {},
    }
    return Welcome(session=session, node=node, **(values | fields))  # type: ignore[arg-type]


def prefer(greeting: Hello, names: Iterable[str] = (), **fields: object) -> Preference:
    """Return the order of names for batches of the dataset of ``welcome(**fields)``."""
    preference = Preference(greeting)
    preference.welcome = welcome(**fields)  # type: ignore[arg-type]
    preference.set_names(names)
    return preference


def make_scheduler() -> RequestScheduler:
    return RequestScheduler(Prefetch(RECIPE, buffers=1), Preference(hello()))


def lent(
    index: int, slot: int, *, session: int = 1, request: int = 1, epoch: int = 0, valid: int = 4
) -> Lent:
    return Lent(session=session, request=request, epoch=epoch, index=index, slot=slot, valid=valid)


def sends(instructions: Sequence[events.Instruction], link: int = 0) -> list[ClientMessage]:
    return [
        out.message for out in instructions if isinstance(out, events.Send) and out.link == link
    ]


def asked(instructions: Sequence[events.Instruction], link: int = 0) -> list[BatchKey]:
    requests = [out for out in sends(instructions, link) if isinstance(out, Request)]
    return [key for request in requests for key in request.want]


def released(instructions: Sequence[events.Instruction], link: int = 0) -> list[BatchKey]:
    requests = [out for out in sends(instructions, link) if isinstance(out, Request)]
    return [key for request in requests for key in request.release]


def open_keys(prefetch: Prefetch) -> list[BatchKey]:
    """Return the batches that have a buffer and are neither complete nor unavailable."""
    return [key for key, batch in prefetch.held.items() if not batch.settled]


class Shell:
    """A client's session, and links whose events come from a test.

    Checks that instructions are for links that exist, and that the clock is never due without
    anything to do.
    """

    def __init__(
        self,
        *endpoints: str,
        window: int = 2,
        buffers: int = 3,
        share_memory: bool = True,
        recipe: Recipe = RECIPE,
    ) -> None:
        """Dial ``endpoints``, as links 0, 1, …"""
        job = Job(name=NAME, hello=hello(window, recipe), share_memory=share_memory)
        self.session = ClientSession(job, buffers=buffers)
        self.prefetch = self.session.prefetch
        self.now_s = 0.0
        self.cpu_s = 0.0
        self.links: dict[int, str] = {}
        self.logged: list[events.Log] = []
        self._dialled: set[int] = set()
        self.do(events.EndpointsListed(dict.fromkeys(endpoints, "")))

    @property
    def warnings(self) -> list[str]:
        return [line.text for line in self.logged if line.is_warning]

    # --- events -------------------------------------------------------------------------------

    def do(self, *coming: events.Event) -> list[events.Instruction]:
        """Pass events, then the clock until nothing is due; return the instructions."""
        done: list[events.Instruction] = []
        for event in (*coming, events.ClockAdvanced(self.cpu_s)):
            done += self._give(event)
        idle = 0
        while self.session.due_s <= self.now_s:
            out = self._give(events.ClockAdvanced(self.cpu_s))
            done += out
            idle += not out
            assert idle < IDLE_TURNS_MAX, "a busy loop"
        return done

    def do_at(self, now_s: float, *coming: events.Event) -> list[events.Instruction]:
        """Do as ``do`` at a later time; what was due before is skipped."""
        self.now_s = now_s
        return self.do(*coming)

    def run_until(self, until_s: float) -> list[events.Instruction]:
        """Pass the clock whenever it is due, up to a time; return the instructions."""
        done = []
        while self.session.due_s <= until_s:
            assert self.session.due_s > self.now_s
            done += self.do_at(self.session.due_s)
        self.now_s = until_s
        return done

    def receive(self, message: NodeMessage, link: int = 0) -> list[events.Instruction]:
        return self.do(events.MessageReceived(link, message))

    def connect(self, link: int = 0) -> list[events.Instruction]:
        return self.do(events.Connected(link))

    def lose(self, link: int = 0) -> list[events.Instruction]:
        """End a connection, or an attempt to make one."""
        return self.do(events.Disconnected(link))

    def find_incompatibility(self, error: Exception, link: int = 0) -> list[events.Instruction]:
        """Report that a link cannot serve."""
        return self.do(events.NodeIncompatible(link, error))  # type: ignore[arg-type]

    def change_list(self, *endpoints: str) -> list[events.Instruction]:
        return self.do(events.EndpointsListed(dict.fromkeys(endpoints, "")))

    def answer(
        self, index: int, link: int = 0, *, session: int = 1, epoch: int = 0
    ) -> list[events.Instruction]:
        """Deliver a whole batch, as one chunk."""
        chunk = Chunk(session=session, epoch=epoch, index=index, first=0, images=4, valid=4)
        return self.do(events.MessageReceived(link, chunk, [4 * 8 * 8 * 3, 32, 32]))

    def map_slots(self, link: int = 0, session: int = 1, slots: int = 2) -> Sequence[object]:
        """Map a session's slots; return them."""
        mapped = [object() for _ in range(slots)]
        self.do(events.ClaimAnswered(link, session, mapped))
        return mapped

    def refuse_slots(
        self, reason: str, link: int = 0, session: int = 1
    ) -> list[events.Instruction]:
        return self.do(events.ClaimAnswered(link, session, refusal=reason))

    # --- consumer calls -----------------------------------------------------------------------

    def take_key(self) -> BatchKey | None:
        """Take a batch and return its buffer; return its key."""
        batch = self.session.take()
        if batch is None:
            return None
        self.session.prefetch.return_buffer(batch.buffer)
        return batch.key

    def take_keys(self) -> Sequence[BatchKey]:
        keys = []
        while (key := self.take_key()) is not None:
            keys.append(key)
        return keys

    # ------------------------------------------------------------------------------------------

    def _give(self, event: events.Event) -> Sequence[events.Instruction]:
        done: list[events.Instruction] = []
        for instruction in self.session.handle(event, self.now_s):
            done.append(instruction)
            match instruction:
                case events.Dial(link, endpoint):
                    assert link not in self._dialled, "no number is used twice"
                    assert endpoint not in self.links.values()
                    self._dialled.add(link)
                    self.links[link] = endpoint
                case events.HangUp(link):
                    del self.links[link]
                case events.Send(link) | events.ClaimSlots(link):
                    assert link in self.links
                case events.Store(link, chunk):
                    done += self._give(events.ChunkStored(link, chunk))
                case events.Log():
                    self.logged.append(instruction)
        return done
