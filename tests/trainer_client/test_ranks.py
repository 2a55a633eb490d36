"""Ranks: known late, never wrong without an error."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from feeder.errors import ConfigError
from tests.support.fake_node import FakeNode
from tests.trainer_client.test_loader import check_epoch, make_loader
from trainer_client import FeederLoader

LAUNCHERS = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


def pretend_group(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    monkeypatch.setattr(dist, "get_world_size", lambda: world_size)


def test_a_process_group_made_after_the_loader_counts(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_loader(node) as loader:
        assert len(loader) == 12
        pretend_group(monkeypatch, 1, 2)
        assert (loader.rank, loader.world_size, len(loader)) == (1, 2, 6)
        assert [batch.index for batch in loader] == [1, 3, 5, 7, 9, 11]


def test_a_process_group_that_comes_too_late_is_an_error(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_loader(node) as loader:
        batches = iter(loader)
        next(batches)
        pretend_group(monkeypatch, 1, 2)
        with pytest.raises(ConfigError, match="has been rank 0 of 1, in the process group it"):
            iter(loader)
        assert next(batches).index == 1, "the epoch under way goes on"


def test_given_ranks_win_over_the_process_group(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_group(monkeypatch, 1, 2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with make_loader(node, rank=0, world_size=1) as loader:
        check_epoch(node, loader, 0)


@pytest.mark.parametrize("variable", LAUNCHERS)
def test_a_launched_process_without_a_rank_is_an_error_with_remedies(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "8")
    with make_loader(node) as loader:
        assert len(loader.classes) == 3, "what needs no rank is known"
        loader.set_epoch(2)
        for use in (lambda: iter(loader), lambda: len(loader), loader.state_dict):
            with pytest.raises(ConfigError) as caught:
                use()
            assert f"has started 8 processes ({variable}=8)" in str(caught.value)
            assert "init_process_group() before the first iter(loader)" in str(caught.value)
            assert "rank=0, world_size=1" in str(caught.value)
            assert "\n" not in str(caught.value)
        pretend_group(monkeypatch, 7, 8)
        assert [(batch.epoch, batch.index) for batch in loader] == [(2, 7)]


def test_ranks_that_leave_a_rank_without_a_batch_are_an_error(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="12 whole batches of 8, fewer than the 13 ranks"):
        make_loader(node, rank=0, world_size=13)
    pretend_group(monkeypatch, 0, 13)
    with make_loader(node) as loader:
        for use in (lambda: iter(loader), lambda: len(loader)):
            with pytest.raises(ConfigError, match="fewer than the 13 ranks: use smaller batches"):
                use()


class Wrapped(IterableDataset[torch.Tensor]):
    """What people write who think that a loader belongs into a DataLoader."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def __iter__(self) -> Iterator[torch.Tensor]:
        with FeederLoader(self._endpoint, dataset="birds", batch_size=8, image_size=8) as loader:
            for images, _ in loader:
                yield images


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_loader_in_a_worker_of_a_dataloader_is_an_error(node: FakeNode) -> None:
    batches = iter(DataLoader(Wrapped(node.endpoint), batch_size=None, num_workers=2))
    with pytest.raises(ConfigError, match="in a worker process of a DataLoader, where each"):
        next(batches)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_dataloader_around_the_loader_is_an_error(node: FakeNode, num_workers: int) -> None:
    with make_loader(node) as loader:
        wrapped: DataLoader[object] = DataLoader(
            loader,  # type: ignore[arg-type]
            batch_size=None,
            num_workers=num_workers,
            multiprocessing_context="fork" if num_workers else None,
        )
        with pytest.raises(TypeError, match="has no item 0: iterate over the loader itself"):
            next(iter(wrapped))
        with pytest.raises(TypeError, match="dataset 'birds' is a feeder's and has no item 3"):
            loader.dataset[3]
