"""The loader against a correct fake node: order, epochs, ranks, padding, lifetimes."""

import copy
import gc
import inspect
import json
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from feeder.errors import ConfigError
from feeder.plan.epoch import EpochPlan, LastBatch
from feeder.wire.messages import Bye, Hello, Request
from feeder.wire.slot_layout import SlotLayout
from tests.support.daemon import happens_within, needs_ipv6, wait_until
from tests.support.fake_node import WAIT_S, FakeNode, Key, Message, sample_pixels
from trainer_client import Batch, FeederLoader, NumpyLoader, normalise
from trainer_client._device import Normaliser

BATCH, SIDE = 8, 8
TensorBatch = Batch[torch.Tensor]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode() as fake:
        yield fake
        assert fake.problems == []


def make_loader(node: FakeNode, **options: object) -> FeederLoader:
    settings: dict[str, object] = {
        "dataset": "birds",
        "batch_size": BATCH,
        "image_size": SIDE,
        "timeout_s": 20.0,
        "device": "cpu",
        "recipe": {"resize_size": SIDE},
    }
    return FeederLoader(node.endpoint, **(settings | options))


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
    node: FakeNode, batch: TensorBatch, *, seed: int = 0, split: str = "train", world_size: int = 1
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
    assert torch.equal(batch.images, Normaliser(torch.device("cpu"), batch.images.dtype)(pixels))


def check_epoch(node: FakeNode, loader: FeederLoader, epoch: int) -> None:
    """Iterate over a whole epoch, which must be ``epoch``, and compare every batch."""
    batches = list(loader)
    assert [(batch.epoch, batch.index) for batch in batches] == [(epoch, i) for i in range(12)]
    for batch in batches:
        check_batch(node, batch)


def test_an_epoch_is_every_batch_of_the_plan_once_and_in_order(node: FakeNode) -> None:
    with make_loader(node, seed=11) as loader:
        batches = list(loader)
        assert len(loader) == len(batches) == 97 // BATCH
    assert [(batch.epoch, batch.index) for batch in batches] == [(0, i) for i in range(12)]
    for batch in batches:
        check_batch(node, batch, seed=11)
    assert len(torch.cat([batch.sample_ids for batch in batches]).unique()) == 96


@pytest.mark.parametrize("memory_format", [None, torch.channels_last, torch.contiguous_format])
def test_a_batch_unpacks_and_has_the_documented_shapes(
    node: FakeNode, memory_format: torch.memory_format | None
) -> None:
    with make_loader(node, memory_format=memory_format) as loader:
        images, labels = next(iter(loader))
        assert loader.memory_format == (memory_format or torch.contiguous_format)
    assert images.shape == (BATCH, 4, SIDE, SIDE)
    assert images.dtype == torch.float32
    assert images.is_contiguous(memory_format=memory_format or torch.contiguous_format)
    assert labels.shape == (BATCH,)
    assert labels.dtype == torch.int64
    assert not images[:, 3].any()


@needs_ipv6
def test_a_feeder_can_be_at_an_ipv6_address() -> None:
    with FakeNode(endpoint="tcp://[::1]:*") as node, make_loader(node) as loader:
        assert node.endpoint.startswith("tcp://[::1]:")
        check_batch(node, next(iter(loader)))


def test_the_loader_has_the_datasets_classes_size_and_fingerprint(node: FakeNode) -> None:
    with make_loader(node) as loader:
        assert loader.classes == ("cat", "dog", "emu")
        assert loader.samples == 97
        assert loader.fingerprint == node.content


def test_set_epoch_chooses_the_epoch(node: FakeNode) -> None:
    with make_loader(node) as loader:
        loader.set_epoch(3)
        check_epoch(node, loader, 3)


def test_iterating_again_without_set_epoch_takes_the_next_epoch(node: FakeNode) -> None:
    with make_loader(node) as loader:
        loader.set_epoch(5)
        assert [{batch.epoch for batch in loader} for _ in range(3)] == [{5}, {6}, {7}]


def test_the_next_epochs_first_batches_are_fetched_before_it_begins(node: FakeNode) -> None:
    with make_loader(node, window=3) as loader:
        check_epoch(node, loader, 0)
        node.wait_until(lambda: (1, 2) in wanted_keys(node), "the next epoch is not fetched")
        before = wanted_keys(node)
        loader.set_epoch(1)
        check_epoch(node, loader, 1)
    assert wanted_keys(node)[: len(before)] == before
    assert wanted_keys(node).count((1, 0)) == 1, "a prefetched batch was requested again"


def test_choosing_another_epoch_releases_prefetched_batches(node: FakeNode) -> None:
    with make_loader(node, window=3) as loader:
        for _ in loader:
            pass
        loader.set_epoch(40)
        check_epoch(node, loader, 40)


def test_set_epoch_starts_fetching_where_the_ranks_are_given(node: FakeNode) -> None:
    with make_loader(node, rank=0, world_size=1) as loader:
        assert node.count(Request) == 0
        loader.set_epoch(2)
        node.wait_until(lambda: (2, 3) in wanted_keys(node), "nothing is fetched")


def test_set_epoch_in_the_middle_of_an_epoch_counts_for_the_next_iterator(node: FakeNode) -> None:
    with make_loader(node) as loader:
        batches = iter(loader)
        next(batches)
        loader.set_epoch(4)
        assert loader.state_dict()["step"] == 1, "the epoch under way has not moved"
        assert [batch.index for batch in batches] == [*range(1, len(loader))]
        assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (4, 0)
        check_epoch(node, loader, 4)


def test_a_sampler_sets_the_epoch_as_scripts_do_it(node: FakeNode) -> None:
    with make_loader(node) as loader:
        loader.sampler.set_epoch(4)
        assert len(loader.sampler) == 96
        check_epoch(node, loader, 4)


def test_an_epoch_is_over_with_its_last_batch(node: FakeNode) -> None:
    """Loops that count their steps never call ``next`` after the last batch."""
    with make_loader(node) as loader:
        for epoch in (0, 5):
            loader.set_epoch(epoch)
            batches = iter(loader)
            for index in range(len(loader)):
                assert (next(batches).epoch, batches.is_over) == (epoch, index == len(loader) - 1)
        assert next(batches, None) is None


def test_breaking_out_and_starting_another_epoch_works(node: FakeNode) -> None:
    with make_loader(node, window=4) as loader:
        for batch in loader:
            if batch.index == 2:
                break
        loader.set_epoch(8)
        check_epoch(node, loader, 8)


def test_choosing_the_same_epoch_again_restarts_it(node: FakeNode) -> None:
    with make_loader(node) as loader:
        for batch in loader:
            if batch.index == 5:
                break
        loader.set_epoch(0)
        check_epoch(node, loader, 0)


def test_two_interleaved_iterators_are_an_error(node: FakeNode) -> None:
    with make_loader(node) as loader:
        first, second = iter(loader), iter(loader)
        assert next(first).epoch == 0
        assert next(second).epoch == 1
        with pytest.raises(ConfigError, match="epoch 0 ended when a newer one of its loader began"):
            next(first)
        assert next(second).index == 1
        assert "second loader" in first.closed_because


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


def test_an_iterator_without_a_batch_uses_up_no_epoch(node: FakeNode) -> None:
    with make_loader(node) as loader:
        unused = [iter(loader) for _ in range(3)]
        assert unused[0].epoch is None
        assert not unused[0].is_over
        running = iter(loader)
        next(running)
        iter(loader)
        assert [batch.index for batch in running] == [*range(1, len(loader))]
        assert {batch.epoch for batch in unused[1]} == {1}


def test_an_exhausted_iterator_stays_exhausted(node: FakeNode) -> None:
    with make_loader(node) as loader:
        batches = iter(loader)
        assert len(list(batches)) == 12
        assert next(batches, None) is None


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("world_size", [1, 2, 5])
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


def test_an_epoch_is_not_over_during_the_wait_for_its_last_batch(node: FakeNode) -> None:
    with make_loader(node) as loader, ThreadPoolExecutor(1) as pool:
        last = len(loader) - 1
        node.script = lambda key, messages: [] if key == (0, last) else messages
        batches = iter(loader)
        for _ in range(last):
            next(batches)
        waiting = pool.submit(next, batches)
        node.wait_until(lambda: (0, last) in wanted_keys(node), "nothing is fetched")
        assert not batches.is_over
        loader.close()
        with pytest.raises(ConfigError, match="closed in the meantime"):
            waiting.result(WAIT_S)


@pytest.mark.parametrize("epoch", ["3", None, 0.5, torch.tensor([1, 2])])
def test_an_epoch_is_a_whole_number(node: FakeNode, epoch: Any) -> None:
    with make_loader(node) as loader, pytest.raises(ConfigError, match="whole number"):
        loader.set_epoch(epoch)


def test_the_rank_may_be_an_integer_of_any_type(node: FakeNode) -> None:
    with make_loader(node, rank=np.int64(1), world_size=torch.tensor(2)) as loader:
        state = json.loads(json.dumps(loader.state_dict()))
    assert state["world_size"] == 2
    with pytest.raises(ConfigError, match=r"whole numbers, got 0\.5 of 2"):
        make_loader(node, rank=0.5, world_size=2)


def test_on_one_rank_the_last_batch_of_an_evaluation_is_short(node: FakeNode) -> None:
    with make_loader(node, split="val") as loader:
        *others, last = loader
    assert {len(batch.labels) for batch in others} == {BATCH}
    assert last.valid == len(last.labels) == len(last.sample_ids) == 97 % BATCH == 1
    assert last.images.shape == (1, 4, SIDE, SIDE)
    assert last.images.is_contiguous()


def test_padding_over_several_ranks_changes_neither_shape_nor_loss(node: FakeNode) -> None:
    with make_loader(node, split="val", rank=0, world_size=2) as loader:
        *_, last = loader
    assert last.valid == 97 % BATCH == 1
    assert last.images.shape == (BATCH, 4, SIDE, SIDE)
    logits = torch.randn(BATCH, 3)
    loss = torch.nn.functional.cross_entropy
    assert loss(logits, last.labels) == loss(logits[:1], last.labels[:1])


def test_batches_do_not_change_while_later_ones_arrive(node: FakeNode) -> None:
    """No buffer is reused under a tensor that the consumer still holds."""
    with make_loader(node, window=1) as loader:
        held = [batch for _ in range(3) for batch in loader]
    assert len(held) == 36
    for batch in held:
        check_batch(node, batch)


@pytest.mark.parametrize("window", [1, 2, 7])
def test_requests_in_flight_never_exceed_the_window(node: FakeNode, window: int) -> None:
    with make_loader(node, window=window) as loader:
        for epoch in range(2):
            check_epoch(node, loader, epoch)
    assert node.largest_window == window


def test_the_nodes_smaller_window_is_respected(node: FakeNode) -> None:
    node.window = 2
    with make_loader(node, window=6) as loader:
        assert len(list(loader)) == 12
    assert node.largest_window == 2


def test_a_slow_consumer_bounds_prefetching(node: FakeNode) -> None:
    with make_loader(node, window=2) as loader:
        batches = iter(loader)
        next(batches)
        node.wait_until(lambda: (0, 3) in wanted_keys(node), "the window is not used")
        node.wait_until(lambda: not unanswered(node), "requests stay open")
        assert max(wanted_keys(node)) == (0, 3), "one is taken, three wait in their buffers"


def test_an_error_on_the_device_leaks_no_buffer(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_loader(node, window=1) as loader:
        with monkeypatch.context() as patch:
            patch.setattr(Normaliser, "__call__", lambda self, pixels: 1 / 0)
            for _ in range(5):
                with pytest.raises(ZeroDivisionError):
                    next(iter(loader))
        check_epoch(node, loader, 5)


def test_statistics_of_an_evaluation(node: FakeNode) -> None:
    with make_loader(node, split="val") as loader:
        assert loader.statistics().first_batch_s is None
        for _ in loader:
            pass
        after = loader.statistics()
        loader.close()
        assert loader.statistics().batches == after.batches
    assert (after.batches, after.images) == (13, 97)
    assert after.received_bytes >= 13 * BATCH * (SIDE * SIDE * 3 + 16)
    assert (after.reconnects, after.chunks_discarded, after.compile_failures) == (0, 0, 0)
    assert after.first_batch_s is not None
    assert 0 < after.first_batch_s < 20
    assert 0 < after.wait_s < 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes(node: FakeNode, dtype: torch.dtype) -> None:
    with make_loader(node, dtype=dtype) as loader:
        batch = next(iter(loader))
        assert batch.images.dtype == dtype
        check_batch(node, batch)


def test_mean_and_std_can_be_chosen(node: FakeNode) -> None:
    with make_loader(node, mean=(0.5, 0.5, 0.5), std=(1 / 255,) * 3, dtype=torch.float32) as loader:
        batch = next(iter(loader))
    pixels = torch.from_numpy(sample_pixels(batch.sample_ids.numpy(), 0, SIDE))
    one = torch.tensor([1.0, 1.0, 1.0, 0.0])
    half = torch.tensor([0.5, 0.5, 0.5, 0.0])  # 128 - 0.5 * 255
    assert torch.allclose(batch.images, normalise(pixels, one, half, torch.float32), atol=1e-4)


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
    with pytest.raises(ConfigError, match=r"this loader of .* is closed"):
        next(batches)
    for use in (lambda: iter(loader), lambda: loader.set_epoch(1)):
        with pytest.raises(ConfigError, match="closed"):
            use()


def test_closing_takes_less_than_two_seconds(node: FakeNode) -> None:
    def close() -> float:
        loader = make_loader(node)
        next(iter(loader))
        start_s = time.monotonic()
        loader.close()
        return time.monotonic() - start_s

    happens_within(2, close)


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
    gc.collect()
    assert gone() is None
    wait_until(lambda: set(threading.enumerate()) <= threads, "its thread has ended")


def test_closing_from_another_thread_ends_a_wait(node: FakeNode) -> None:
    node.script = lambda key, messages: []
    with make_loader(node) as loader:
        batches = iter(loader)
        node.wait_until(lambda: node.count(Request), "nothing is wanted")
        closer = threading.Thread(target=loader.close)
        closer.start()
        with pytest.raises(ConfigError, match="closed"):
            next(batches)
        closer.join()


_UNCLOSED_SCRIPT = """
    import sys
    from trainer_client import FeederLoader
    loader = FeederLoader(sys.argv[1], dataset="birds", batch_size=8, image_size=8, device="cpu")
    batches = iter(loader)
    next(batches)
"""

_FORK_SCRIPT = """
    import os, sys, traceback
    from feeder.errors import ConfigError
    from trainer_client import FeederLoader
    loader = FeederLoader(sys.argv[1], dataset="birds", batch_size=8, image_size=8, device="cpu")
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
"""


def run_script(script: str, endpoint: str) -> str:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(script)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [*command, endpoint],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def test_a_program_that_never_closes_its_loader_still_exits(node: FakeNode) -> None:
    run_script(_UNCLOSED_SCRIPT, node.endpoint)
    node.wait_until(lambda: node.count(Bye) == 1, "no Bye at the program's end")


def test_a_fork_gets_a_clear_error_and_does_not_disturb_its_parent(node: FakeNode) -> None:
    *lines, batches = run_script(_FORK_SCRIPT, node.endpoint).splitlines()
    assert len(lines) == 3
    assert all("cannot work in its fork" in line for line in lines)
    assert batches == "11"
    node.wait_until(lambda: not node.sessions, "no Bye")
    assert (node.count(Hello), node.count(Bye)) == (1, 1)


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.deepcopy])
def test_pickling_or_copying_a_loader_is_an_error_with_a_remedy(
    node: FakeNode, duplicate: Callable[[object], object]
) -> None:
    with (
        make_loader(node) as loader,
        pytest.raises(TypeError, match="cannot be pickled or copied: make a loader in each"),
    ):
        duplicate(loader)


def test_the_client_needs_none_of_the_daemons_libraries() -> None:
    script = """
        import sys
        import trainer_client, trainer_client.reference.resnet, trainer_client.train
        print(*sorted(sys.modules))
    """
    modules = set(run_script(script, "").split())
    assert not modules & {"PIL", "turbojpeg", "psutil", "xxhash", "torchvision"}
    rooms = {name.split(".")[1] for name in modules if name.startswith("feeder.")}
    assert rooms <= {
        "errors",
        "installation",
        "metrics",
        "plan",
        "wire",
        "process",
        "security",
        "client",
    }


def wanted_keys(node: FakeNode) -> list[tuple[int, int]]:
    return [
        key for message in node.received if isinstance(message, Request) for key in message.want
    ]


def unanswered(node: FakeNode) -> bool:
    return any(session.wanted for session in node.sessions.values())


@pytest.mark.parametrize(("batches", "window"), [(0.5, 1), (1.0, 1), (2.9, 2), (100.0, 4)])
def test_the_window_is_limited_in_bytes_too(node: FakeNode, batches: float, window: int) -> None:
    batch_bytes = SlotLayout(slots=1, batch_size=BATCH, image_size=SIDE).slot_bytes
    with make_loader(node, window=4, window_bytes=int(batches * batch_bytes)):
        (hello,) = (message for message in node.received if isinstance(message, Hello))
    assert hello.window == window


def test_a_window_of_zero_bytes_is_refused(node: FakeNode) -> None:
    with pytest.raises(ConfigError, match="window_bytes must be at least 1, got 0"):
        make_loader(node, window_bytes=0)


def test_the_job_s_name_is_sent_when_a_loader_greets(node: FakeNode) -> None:
    with make_loader(node, job="sweep-7"), make_loader(node):
        assert sorted(session.hello.job for session in node.sessions.values()) == ["", "sweep-7"]


@pytest.mark.parametrize("job", ["j" * 129, "a\x1bb"])
def test_a_job_s_name_that_no_feeder_takes_is_named(node: FakeNode, job: str) -> None:
    with pytest.raises(ConfigError, match="dataset, seed, window or job is invalid"):
        make_loader(node, job=job)


@pytest.mark.parametrize("make", [FeederLoader, NumpyLoader])
def test_what_a_loader_was_made_with_cannot_be_set(node: FakeNode, make: Any) -> None:
    others = {"epoch", "shuffle", "hue", "recipe", "samples", "num_workers", "collate_fn", "close"}
    remedies = {
        "image_size": "make a new .*Loader with image_size=…",
        "shuffle": "make a new .*Loader with recipe={'shuffle': …}",
        "epoch": r"call set_epoch\(\) before the next iter",
        "collate_fn": "batches come ready from the feeder",
    }
    with make(node.endpoint, dataset="birds", batch_size=BATCH, image_size=SIDE) as loader:
        for name in others | {*inspect.signature(make).parameters}:
            with pytest.raises(AttributeError, match=remedies.get(name, name)) as caught:
                setattr(loader, name, 3)
            assert "\n" not in str(caught.value)
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
        with pytest.raises(AttributeError, match="make a new NamedLoader with seed="):
            loader.seed = 3  # type: ignore[attr-defined]
