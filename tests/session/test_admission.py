"""From Hello to Welcome or Refused: the terms, and the limits of the node and of one client."""

import pytest

from feeder.plan.labels import LabelSpec
from feeder.session.admission import HelloReceived
from feeder.session.events import SlotsOpened
from feeder.wire.messages import MAX_NODE_HEADER_BYTES, Hello, Refused, Welcome
from tests.support.session_shell import CHUNK, SLOT_BYTES, Shell, limits, recipe

A, B = b"a", b"b"
ROOMY = {"sessions_max": 99, "slots_bytes": 100 * SLOT_BYTES}


def check_refused(answer: object, code: str, *words: str) -> None:
    assert isinstance(answer, Refused)
    assert answer.code == code
    for word in words:
        assert word in answer.message


def test_welcome_describes_the_dataset_and_the_node() -> None:
    welcome = Shell().hello(A, window=3)
    assert isinstance(welcome, Welcome)
    assert (welcome.samples, welcome.batches, welcome.shards) == (101, 14, 5)
    assert (welcome.lanes, welcome.working_set, welcome.piece) == (1, 101, 64)
    assert (welcome.window, welcome.chunk_images, welcome.classes) == (3, CHUNK, ("a", "b"))
    assert welcome.recipe_fingerprint == recipe().fingerprint()
    assert welcome.content == "f" * 32
    assert (welcome.node, welcome.number, welcome.incarnation) == ("host/1 ipc:///n.1", 1, 77)
    assert welcome.siblings == (("ipc:///n",), ("ipc:///n.1",))
    assert welcome.self_test == "5" * 32


@pytest.mark.parametrize(
    ("code", "hello", "words"),
    [
        ("unknown-dataset", {"dataset": "imagenet"}, ["'imagenet'", "served: d"]),
        ("bad-recipe", {"batch_size": 102}, ["102", "101 samples"]),
        ("bad-recipe", {"lanes": 15}, ["lanes 15 is more than the 14 whole batches of 7"]),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(
    code: str, hello: dict[str, object], words: list[str]
) -> None:
    check_refused(Shell().hello(A, **hello), code, *words)  # type: ignore[arg-type]


def test_padded_batch_larger_than_dataset_is_served() -> None:
    shell = Shell(limits(chunk_images=64, slots_bytes=1 << 20))
    worker = shell.join()
    shell.hello(A, batch_size=102, last_batch="pad", window=1)
    shell.request(A, [(0, 0)], [])
    assert [fill.count for fill in shell.fills.values()] == [64, 38]
    shell.fill(worker)
    assert shell.sent[0].valid == 101


@pytest.mark.parametrize(
    ("image_size", "labels", "most", "images"),
    [
        (512, LabelSpec(), 32, 32),
        (513, LabelSpec(), 32, 31),
        (2048, LabelSpec(), 32, 2),
        (2048, LabelSpec(), 1, 1),
        (362, LabelSpec(), 1024, 64),
        (8, LabelSpec(kind="multi", width=65_536), 1024, 128),
        (8, LabelSpec(kind="float", width=4_096), 1024, 512),
        (8, LabelSpec(kind="none"), 1024, 1024),
    ],
    ids=str,
)
def test_chunks_of_large_images_or_many_labels_are_smaller(
    image_size: int, labels: LabelSpec, most: int, images: int
) -> None:
    """A client accepts frames of 16 MiB, whatever it expects."""
    shell = Shell(limits(chunk_images=most, slots_bytes=1 << 40), labels=labels)
    shell.join()
    shell.hello(A, batch_size=1024, image_size=image_size, window=1, last_batch="pad")
    (welcome,) = (message for _, message in shell.inbox if isinstance(message, Welcome))
    assert (welcome.labels, welcome.chunk_images) == (labels, images)
    assert images * labels.row_bytes <= MAX_NODE_HEADER_BYTES
    (slots,) = shell.open.values()
    assert slots.layout.labels == labels
    assert slots.layout.slot_bytes >= 1024 * (image_size**2 * 3 + labels.row_bytes + 8)
    shell.request(A, [(0, 0)], [])
    assert {fill.count for fill in shell.fills.values()} == {images}


@pytest.mark.parametrize(
    ("fields", "images"),
    [
        ({"image_size": {"0": 224, "2": 512, "4": 724}}, [64, 64, 32, 32, 16]),
        ({"image_size": {"0": 724, "3": 224}}, [16, 16, 16, 64, 64]),
        ({"crops": [[2, 224], [6, 96]]}, [53] * 5),
        ({"crops": [[2, 2048]]}, [1] * 5),
    ],
    ids=str,
)
def test_chunks_follow_the_images_of_the_epoch(
    fields: dict[str, object], images: list[int]
) -> None:
    """And the slots hold the largest."""
    shell = Shell(limits(chunk_images=64, slots_bytes=1 << 40))
    shell.join()
    shell.hello(A, batch_size=64, window=1, last_batch="pad", **{"image_size": 224, **fields})
    (welcome,) = (message for _, message in shell.inbox if isinstance(message, Welcome))
    assert welcome.chunk_images == max(images)
    (slots,) = shell.open.values()
    largest = max(slots.layout.at(epoch).pixel_bytes for epoch in range(5))
    assert largest <= slots.layout.slot_bytes < largest + 64 * 16 + 2 * 4096
    for epoch, most in enumerate(images):
        shell.request(A, [], [(epoch - 1, 0)] if epoch else [])
        while shell.returning:
            shell.return_slot()
        shell.request(A, [(epoch, 0)], [])
        counts = []
        while shell.fills:
            fill = next(iter(shell.fills.values()))
            counts.append(fill.count)
            shell.fill(fill.worker)
        assert (max(counts), sum(counts)) == (most, 64)


@pytest.mark.parametrize(
    ("requested", "fields", "available", "granted"),
    [
        (3, {}, 100, 3),
        (4, {}, 100, 4),
        (5, {}, 100, 4),
        (1000, {}, 100, 4),
        (4, {"slots_bytes": 3 * SLOT_BYTES + 1}, 100, 3),
        (4, {"client_slots_bytes": 2 * SLOT_BYTES}, 100, 2),
        (4, {}, 2, 2),
    ],
)
def test_a_window_is_what_was_requested_within_limits_and_memory(
    requested: int, fields: dict[str, float], available: int, granted: int
) -> None:
    shell = Shell(limits(**(ROOMY | fields)))
    shell.available_bytes = available * SLOT_BYTES
    shell.hello(A, window=requested)
    assert shell.clients[A].window == granted
    assert shell.counters.windows_reduced == (requested > granted)


@pytest.mark.parametrize(("chunks", "granted"), [(9, 3), (8, 2), (3, 1), (2, 1)])
def test_a_window_has_no_more_chunks_than_can_be_queued_for_sending(
    chunks: int, granted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.session.admission.SESSION_CHUNKS_MAX", chunks)
    shell = Shell(limits(**ROOMY))
    shell.hello(A, window=4)  # 3 chunks a batch
    assert shell.clients[A].window == granted


def test_the_refusal_for_want_of_memory_names_what_to_raise() -> None:
    shell = Shell()
    shell.available_bytes = SLOT_BYTES - 1
    answer = shell.hello(A)
    docker, limit = "docker run --memory=", "limits: {memory: "
    check_refused(answer, "memory", docker, limit, "MemoryMax=", "/dev/shm is not used")
    assert isinstance(answer, Refused)
    assert "slots_bytes" not in answer.message, "raising that would not help"
    for field in ("client_slots_bytes", "slots_bytes"):
        shell = Shell(limits(**{field: SLOT_BYTES}))
        check_refused(shell.hello(A, batch_size=91), "memory", f"raise {field}")


@pytest.mark.parametrize(
    ("fields", "admitted", "refused", "code", "words", "other"),
    [
        ({"sessions_max": 2}, ["a1 8", "b1 8"], "c1 8", "clients", ["all 2", "clients_max"], ""),
        ({"memories_max": 2}, ["a1 8", "b1 8"], "c1 8", "clients", ["open files"], ""),
        (
            {"client_sessions_max": 2},
            ["a1 8", "a2 8"],
            "a3 8",
            "clients",
            ["'a'", "2 sessions", "client_sessions_max"],
            "b1 8",
        ),
        (
            {"slots_bytes": 2 * SLOT_BYTES},
            ["a1 8", "b1 8"],
            "c1 8",
            "memory",
            ["0.0 MB remain", "raise slots_bytes"],
            "",
        ),
        (
            {"client_slots_bytes": 2 * SLOT_BYTES},
            ["a1 8", "a2 8"],
            "a3 8",
            "memory",
            ["'a'", "0.0 MB left", "client_slots_bytes"],
            "b1 8",
        ),
        (
            {"client_recipes_max": 2},
            ["a1 8", "a2 8", "a3 9"],  # the same recipe again does not count
            "a4 10",
            "recipes",
            ["'a'", "client_recipes_max"],
            "b1 10",
        ),
        (
            {"recipes_max": 3},
            ["a1 8", "a2 9", "b1 10"],
            "b2 11",
            "recipes",
            ["3 different", "recipes_max"],
            "b3 9",
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_mapped", [False, True])
def test_a_limit_refuses_one_session_too_many_until_another_has_freed_its_memory(
    fields: dict[str, float],
    admitted: list[str],
    refused: str,
    code: str,
    words: list[str],
    other: str,
    is_mapped: bool,
) -> None:
    """Sessions are given as a client's letter and number, and the image size of its recipe."""
    shell = Shell(limits(**(ROOMY | fields)))

    def hello(session: str) -> object:
        peer, image_size = session.split()
        side = int(image_size)
        return shell.hello(peer.encode(), window=1, account=peer[0], image_size=side)

    for session in admitted:
        assert isinstance(hello(session), Welcome)
    check_refused(hello(refused), code, *words)
    assert shell.counters.refused == {code: 1}
    last = admitted[-1].split()[0].encode()
    number = shell.clients[last].session
    if is_mapped:
        assert shell.claim(number)
    shell.bye(last)
    if code == "memory":
        check_refused(hello(refused), code, *words)
    if is_mapped:
        assert not shell.closing, "the client still reads the slots"
        shell.unmap(number)
    shell.close_slots()
    assert isinstance(hello(refused), Welcome)
    assert not other or isinstance(hello(other), Welcome)


def test_a_session_whose_memory_cannot_be_created_is_refused_and_ends() -> None:
    shell = Shell()
    hello = Hello(dataset="d", recipe=recipe(), seed=0, window=2, client="c")
    shell.table.handle(HelloReceived(7, A, hello, 1 << 30), 0.0)
    out = shell.table.handle(SlotsOpened(7, "no memory"), 0.0)
    assert out[0].message.code == "memory"  # type: ignore[union-attr]
    assert not shell.table.sessions.open
