"""The loader against a correct fake node: order, epochs, ranks, padding, lifetimes."""

import copy
import gc
import inspect
import json
import pickle
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feeder.errors import ConfigError
from feeder.plan.epoch import EpochPlan, LastBatch
from feeder.wire.messages import Bye, Hello, Request
from feeder.wire.slot_layout import SlotLayout
from tests.support.daemon import needs_ipv6, wait_until
from tests.support.fake_node import WAIT_S, FakeNode, Key, Message, sample_pixels
from tests.support.sources import REPOSITORY
from trainer_client import Batch, FeederLoader, NumpyLoader
from trainer_client._device import Normaliser

BATCH, SIDE = 8, 8
STEPS = 97 // BATCH  # of training; an evaluation has one more
TensorBatch = Batch[torch.Tensor]


def make_loader(node: FakeNode, kind: Any = FeederLoader, **options: object) -> FeederLoader:
    settings: dict[str, object] = {
        "dataset": "birds",
        "batch_size": BATCH,
        "image_size": SIDE,
        "timeout_s": 20.0,
        "recipe": {"resize_size": SIDE},
    }
    if kind is FeederLoader:
        settings["device"] = "cpu"
    loader: FeederLoader = kind(node.endpoint, **(settings | options))
    return loader


def plan(node: FakeNode, epoch: int, *, seed: int = 0, split: str = "train") -> EpochPlan:
    return EpochPlan(
        node.layout,
        batch_size=BATCH,
        seed=seed,
        epoch=epoch,
        shuffle=split == "train",
        last_batch=LastBatch.DROP if split == "train" else LastBatch.PAD,
    )


def check_batch(
    node: FakeNode,
    batch: TensorBatch,
    *,
    seed: int = 0,
    split: str = "train",
    world_size: int = 1,
    **scaling: Any,
) -> None:
    """Compare every value of a batch with the plan and the fake node's samples."""
    order = plan(node, batch.epoch, seed=seed, split=split)
    sample_ids = np.full(BATCH, -1, dtype=np.int64)
    if batch.index < order.batches:
        sample_ids[: order.valid(batch.index)] = order.samples(batch.index)
    assert batch.valid == (sample_ids >= 0).sum()
    if world_size == 1:  # the last batch is short
        sample_ids = sample_ids[: batch.valid]
    assert batch.sample_ids.tolist() == sample_ids.tolist()
    expected_labels = np.where(sample_ids < 0, -100, sample_ids % len(node.classes))
    assert batch.labels.tolist() == expected_labels.tolist()
    pixels = torch.from_numpy(sample_pixels(sample_ids, batch.epoch, SIDE))
    normalise = Normaliser(torch.device("cpu"), batch.images.dtype, **scaling)
    assert torch.equal(batch.images, normalise(pixels))


def check_epoch(node: FakeNode, loader: FeederLoader, epoch: int) -> None:
    """Iterate over a whole epoch, which must be ``epoch``, and compare every batch."""
    batches = list(loader)
    assert [*map(position_of, batches)] == [(epoch, index) for index in range(STEPS)]
    for batch in batches:
        check_batch(node, batch)


def position_of(batch: Any) -> tuple[int, int]:
    return batch.epoch, batch.index


def take(loader: FeederLoader, count: int) -> list[TensorBatch]:
    """Take ``count`` batches, across epochs."""
    taken: list[TensorBatch] = []
    while len(taken) < count:
        taken += islice(loader, count - len(taken))
    return taken


def wanted_keys(node: FakeNode) -> list[tuple[int, int]]:
    return [
        key for message in node.received if isinstance(message, Request) for key in message.want
    ]


# --- Epochs ---------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(
    course=st.lists(
        st.tuples(st.none() | st.integers(0, 9), st.none() | st.integers(1, STEPS)),
        min_size=1,
        max_size=4,
    ),
    window=st.sampled_from([1, 2, 4, 7]),
    split=st.sampled_from(["train", "val"]),
)
@example([(5, None), (None, None), (None, None)], 4, "train")  # the next one, without set_epoch
@example([(None, 3), (8, None)], 4, "train")  # after a break
@example([(None, 6), (0, None)], 4, "train")  # the same one again
@example([(None, None), (40, None)], 3, "train")  # what was fetched of epoch 1 is released
@example([(None, None), (None, None), (None, None)], 1, "train")  # no buffer is used twice
@example([(None, STEPS - 1)], 4, "train")
@example([(None, STEPS)], 4, "train")
def test_any_course_of_epochs_gives_the_plans_batches_and_resumes(
    course: list[tuple[int | None, int | None]], window: int, split: str
) -> None:
    """A course: epochs that are chosen, or not, and how many batches are taken of each."""
    steps, options = STEPS + (split == "val"), {"window": window, "split": split, "seed": 11}
    held: list[TensorBatch] = []
    epoch = -1
    with FakeNode() as node:
        with make_loader(node, **options) as loader:
            assert len(loader) == steps
            for chosen, count in course:
                epoch = epoch + 1 if chosen is None else chosen
                if chosen is not None:
                    loader.set_epoch(chosen)
                batches = [*islice(loader, count)]
                indices = range(steps if count is None else count)
                assert [*map(position_of, batches)] == [(epoch, index) for index in indices]
                held += batches
            state = loader.state_dict()
        position = epoch * steps + len(batches)
        assert (state["epoch"], state["step"]) == divmod(position, steps)
        with make_loader(node, **options) as resumed:
            resumed.load_state_dict(json.loads(json.dumps(state)))
            assert resumed.state_dict() == state
            later = take(resumed, steps + 2)
            assert resumed.statistics().reconnects == 0
        numbers = range(position, position + steps + 2)
        assert [*map(position_of, later)] == [divmod(number, steps) for number in numbers]
        for batch in (*held, *later):  # which stay as they were
            check_batch(node, batch, seed=11, split=split)
        assert node.largest_window <= window
        assert node.problems == []


def test_an_epoch_has_every_sample_once_and_is_over_with_its_last_batch(node: FakeNode) -> None:
    """Loops that count their steps never call ``next`` after the last batch."""
    with make_loader(node) as loader:
        for epoch in (0, 5):
            loader.sampler.set_epoch(epoch)  # as scripts do it
            batches = iter(loader)
            seen = []
            for index in range(len(loader)):
                seen.append(next(batches))
                assert (seen[-1].epoch, batches.is_over) == (epoch, index == STEPS - 1)
            assert len(torch.cat([batch.sample_ids for batch in seen]).unique()) == 96
        assert next(batches, None) is None
        assert next(batches, None) is None
        assert len(loader.sampler) == 96


def test_the_next_epochs_first_batches_are_fetched_before_it_begins(node: FakeNode) -> None:
    with make_loader(node, window=3) as loader:
        check_epoch(node, loader, 0)
        node.wait_until(lambda: (1, 2) in wanted_keys(node), "the next epoch is not fetched")
        before = wanted_keys(node)
        loader.set_epoch(1)
        check_epoch(node, loader, 1)
    assert wanted_keys(node)[: len(before)] == before
    assert wanted_keys(node).count((1, 0)) == 1, "a prefetched batch was requested again"


def test_set_epoch_in_the_middle_of_an_epoch_counts_for_the_next_iterator(node: FakeNode) -> None:
    with make_loader(node) as loader:
        batches = iter(loader)
        next(batches)
        loader.set_epoch(4)
        assert loader.state_dict()["step"] == 1, "the epoch under way has not moved"
        assert [batch.index for batch in batches] == [*range(1, len(loader))]
        assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (4, 0)
        check_epoch(node, loader, 4)


def test_an_iterator_ends_when_a_newer_one_begins_and_uses_up_no_epoch_before(
    node: FakeNode,
) -> None:
    with make_loader(node) as loader:
        unused = [iter(loader) for _ in range(3)]
        assert (unused[0].epoch, unused[0].is_over) == (None, False)
        first, second = iter(loader), iter(loader)
        assert next(first).epoch == 0
        iter(loader)
        assert next(first).index == 1
        assert next(second).epoch == 1
        with pytest.raises(ConfigError, match="epoch 0 ended when a newer one of its loader began"):
            next(first)
        assert next(second).index == 1
        assert "second loader" in first.closed_because
        assert {batch.epoch for batch in unused[1]} == {2}


def test_two_threads_at_once_are_an_error_for_the_second(node: FakeNode) -> None:
    held: list[Message] = []

    def hold(key: Key, messages: list[Message]) -> list[Message]:
        held.extend(messages)
        return []

    node.script = hold
    with make_loader(node) as loader, ThreadPoolExecutor() as pool:
        batches = iter(loader)
        first = pool.submit(next, batches)
        node.wait_until(lambda: held, "the first thread waits")
        for shared in (batches, iter(loader)):
            with pytest.raises(ConfigError, match=r"in another thread: .*a second loader"):
                next(shared)
        node.script = lambda key, messages: messages
        for message in held:
            node.send(message)
        assert first.result(WAIT_S).index == 0
        assert [batch.index for batch in batches] == [*range(1, len(loader))]


def test_epochs_and_ranks_are_whole_numbers_of_any_type(node: FakeNode) -> None:
    with make_loader(node) as loader:
        for epoch in ("3", None, 0.5, 2.0, torch.tensor([1, 2]), -1):
            with pytest.raises(ConfigError, match="epoch must be a whole number"):
                loader.set_epoch(epoch)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="epoch must be 0"):
            loader.set_epoch(2**31)
        for epoch in (np.int64(3), torch.tensor(5)):
            loader.set_epoch(epoch)  # type: ignore[arg-type]
            assert position_of(next(iter(loader))) == (int(epoch), 0)
            assert json.loads(json.dumps(loader.state_dict()))["epoch"] == int(epoch)
    with make_loader(node, rank=np.int64(1), world_size=torch.tensor(2)) as loader:
        assert json.loads(json.dumps(loader.state_dict()))["world_size"] == 2
    with pytest.raises(ConfigError, match=r"whole numbers, got 0\.5 of 2"):
        make_loader(node, rank=0.5, world_size=2)


# --- Batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "memory_format", "scaling"),
    [
        (torch.float32, None, {}),
        (torch.float32, torch.channels_last, {"mean": (0.5, 0.25, 0.75)}),
        (torch.bfloat16, torch.contiguous_format, {"std": (0.1, 0.2, 0.3)}),
    ],
)
def test_a_batch_unpacks_and_has_the_documented_shapes(
    node: FakeNode,
    dtype: torch.dtype,
    memory_format: torch.memory_format | None,
    scaling: dict[str, Any],
) -> None:
    expected_format = memory_format or torch.contiguous_format
    with make_loader(node, dtype=dtype, memory_format=memory_format, **scaling) as loader:
        batch = next(iter(loader))
        assert loader.memory_format == expected_format
    check_batch(node, batch, **scaling)
    images, labels = batch
    assert (images.shape, images.dtype) == ((BATCH, 4, SIDE, SIDE), dtype)
    assert images.is_contiguous(memory_format=expected_format)
    assert (labels.shape, labels.dtype) == ((BATCH,), torch.int64)
    assert not images[:, 3].any()


@needs_ipv6
def test_a_feeder_can_be_at_an_ipv6_address() -> None:
    with FakeNode(endpoint="tcp://[::1]:*") as node, make_loader(node) as loader:
        assert node.endpoint.startswith("tcp://[::1]:")
        check_batch(node, next(iter(loader)))


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("world_size", [2, 5])
def test_ranks_share_an_epoch_without_overlap(node: FakeNode, split: str, world_size: int) -> None:
    sample_ids: list[int] = []
    lengths = set()
    for rank in range(world_size):
        with make_loader(node, split=split, rank=rank, world_size=world_size) as loader:
            lengths.add(len(loader))
            batches = list(loader)
        assert [batch.index for batch in batches] == [
            rank + world_size * step for step in range(len(batches))
        ]
        for batch in batches:
            check_batch(node, batch, split=split, world_size=world_size)
            sample_ids += batch.sample_ids[: batch.valid].tolist()
    assert len(lengths) == 1, "every rank takes the same number of steps"
    assert len(set(sample_ids)) == len(sample_ids)
    if split == "val":
        assert sorted(sample_ids) == list(range(97))


def test_the_last_batch_of_an_evaluation_is_short_on_one_rank_and_padded_on_several(
    node: FakeNode,
) -> None:
    with make_loader(node, split="val") as loader:
        *others, last = loader
    assert {len(batch.labels) for batch in others} == {BATCH}
    assert last.valid == len(last.labels) == len(last.sample_ids) == 97 % BATCH == 1
    assert last.images.shape == (1, 4, SIDE, SIDE)
    assert last.images.is_contiguous()
    with make_loader(node, split="val", rank=0, world_size=2) as loader:
        *_, last = loader
    assert (last.valid, last.images.shape) == (1, (BATCH, 4, SIDE, SIDE))
    logits = torch.randn(BATCH, 3)
    loss = torch.nn.functional.cross_entropy
    assert loss(logits, last.labels) == loss(logits[:1], last.labels[:1]), "padding has no loss"


# --- The window -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("batches", "window"), [(0.5, 1), (2.9, 2), (100.0, 4)])
def test_the_window_is_limited_in_bytes_too(node: FakeNode, batches: float, window: int) -> None:
    batch_bytes = SlotLayout(slots=1, batch_size=BATCH, image_size=SIDE).slot_bytes
    with make_loader(node, window=4, window_bytes=int(batches * batch_bytes)):
        (hello,) = (message for message in node.received if isinstance(message, Hello))
    assert hello.window == window


# --- Lifetime -------------------------------------------------------------------------------------


def test_close_is_idempotent_and_leaks_no_thread_or_descriptor(node: FakeNode) -> None:
    process = psutil.Process()
    gc.collect()
    threads, files = set(threading.enumerate()), process.num_fds()
    loader = make_loader(node)
    batches = iter(loader)
    next(batches)
    loader.close()
    loader.close()
    wait_until(lambda: set(threading.enumerate()) <= threads, "its thread has ended")
    wait_until(lambda: process.num_fds() <= files, "both ends of the connection are closed")
    node.wait_until(lambda: node.count(Bye) == 1, "no Bye")
    for use in (lambda: next(batches), lambda: iter(loader), lambda: loader.set_epoch(1)):
        with pytest.raises(ConfigError, match=r"this loader of .* is closed"):
            use()


def test_an_interrupt_while_the_thread_starts_leaks_no_thread(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def interrupt(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            make_loader(node)
    (thread,) = started
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_a_garbage_collected_loader_ends_its_thread(node: FakeNode) -> None:
    threads = set(threading.enumerate())
    loader = make_loader(node)
    batches = iter(loader)
    next(batches)
    gone = weakref.ref(loader)
    del loader
    assert gone() is not None, "an iterator keeps its loader alive"
    del batches
    assert gone() is None, "at once, without the garbage collector"
    wait_until(lambda: set(threading.enumerate()) <= threads, "its thread has ended")


_FORK_SCRIPT = """
    import os, sys
    from feeder.errors import ConfigError
    from trainer_client import NumpyLoader
    loader = NumpyLoader(sys.argv[1], dataset="birds", batch_size=8, image_size=8)
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:
        for use in (lambda: next(batches), lambda: iter(loader), lambda: loader.set_epoch(1)):
            try:
                use()
            except ConfigError as error:
                print(error)
        loader.close()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print(sum(1 for _ in batches))
    next(iter(loader))
"""


def run_script(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run it in a process of its own, which must end with status 0."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(script)]
    done = subprocess.run(
        [*command, *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done


def test_a_fork_gets_a_clear_error_and_its_parent_exits_without_closing(node: FakeNode) -> None:
    done = run_script(_FORK_SCRIPT, node.endpoint)
    assert done.stderr == ""
    *lines, batches = done.stdout.splitlines()
    assert len(lines) == 3
    assert all("cannot work in its fork" in line for line in lines)
    assert batches == "11"
    node.wait_until(lambda: not node.sessions, "no Bye at the program's end")
    assert (node.count(Hello), node.count(Bye)) == (1, 1)


# --- What scripts may not do with it --------------------------------------------------------------


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.deepcopy])
def test_pickling_or_copying_a_loader_is_an_error_with_a_remedy(
    node: FakeNode, duplicate: Callable[[object], object]
) -> None:
    with (
        make_loader(node) as loader,
        pytest.raises(TypeError, match="cannot be pickled or copied: make a loader in each"),
    ):
        duplicate(loader)


@pytest.mark.parametrize("make", [FeederLoader, NumpyLoader])
def test_what_a_loader_was_made_with_cannot_be_set(node: FakeNode, make: Any) -> None:
    names = {"epoch", "shuffle", "hue", "recipe", "samples", "num_workers", "collate_fn", "close"}
    with make(node.endpoint, dataset="birds", batch_size=BATCH, image_size=SIDE) as loader:
        for name in names | {*inspect.signature(make).parameters}:
            match = f"setting {name} would change nothing: make a new {make.__name__} instead"
            with pytest.raises(AttributeError, match=match):
                setattr(loader, name, 3)
        with pytest.raises(AttributeError):
            loader.sampler.epoch = 3
        assert [batch.index for batch in loader] == [*range(12)], "it works as before"


def test_other_attributes_are_the_scripts_and_the_frameworks(node: FakeNode) -> None:
    class NamedLoader(FeederLoader):
        steps = 0

        def __init__(self, title: str) -> None:
            self.title = title
            super().__init__(node.endpoint, dataset="birds", batch_size=BATCH, image_size=SIDE)
            self.title += "!"

    with NamedLoader("birds") as loader:
        loader.steps = 12
        loader._is_accelerate_prepared = True  # type: ignore[attr-defined]  # Accelerate
        loader._iterator = None  # type: ignore[attr-defined]  # Lightning
        loader.mixup_enabled = False  # type: ignore[attr-defined]  # timm
        assert (loader.title, loader.steps) == ("birds!", 12)
        with pytest.raises(AttributeError, match="make a new NamedLoader instead"):
            loader.seed = 3  # type: ignore[attr-defined]
