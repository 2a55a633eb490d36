"""A real daemon serves selections with weights, mixes and curricula: ranks, resume, refusals."""

import json
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feeder
from feeder.cli.contact_sheet import Note, draw_contact_sheet
from feeder.client.stats import request_report
from feeder.dataset.opened import Dataset
from feeder.dataset.selection import Selection
from feeder.errors import ConfigError
from feeder.plan.epoch import EpochPlan
from tests.support.daemon import DEADLINE_S, Daemon
from tests.support.sources import call_feeder, error_line, make_source, pack
from trainer_client import NumpyLoader

GLOBAL_BATCH = 12
SEED = 3
DRAWS = 40 * GLOBAL_BATCH
ORDER = {"order_batch_size": GLOBAL_BATCH, "lanes": 2, "working_set": (224, 16)}
CROPS = [{"count": 1, "size": 24}, {"count": 2, "size": 16, "scale": [0.05, 0.4]}]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The datasets ``a`` and ``b``; a mix of them by weight, and a curriculum of ``a``."""
    folder = tmp_path_factory.mktemp("weighted")
    for name, images in (("a", 53), ("b", 31)):
        pack(make_source(folder / f"src{name}", images, side=72), folder / name, shards=3)
    (folder / "by_class.csv").write_text("class,weight\nclass0,1\nclass1,0.5\nclass2,3\n")
    for n in range(3):
        rows = "".join(f"class{c},{int(c == n)}\n" for c in range(3))
        (folder / f"{n}.csv").write_text(f"class,weight\n{rows}")
    select(
        folder,
        *("mix", "a", "b", "--mix", "a=0.7", "--mix", "b=0.3"),
        *("--weights", f"{folder / 'by_class.csv'}"),
    )
    columns = [f"--weights={epoch}={folder / f'{n}.csv'}" for epoch, n in ((0, 0), (1, 1), (3, 2))]
    select(folder, "curriculum", "a", *columns)
    return folder


def select(home: Path, name: str, *words: str) -> None:
    places = [home / word if (home / word).is_dir() else word for word in words]
    more = ("--epoch-samples", str(DRAWS), "--out", home / f"{name}.sel")
    result = call_feeder("select", name, *places, *more)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def daemon(home: Path) -> Iterator[Daemon]:
    data = [f"a={home / 'a'}", *(f"{name}={home / name}.sel" for name in ("mix", "curriculum"))]
    options = [word for text in data for word in ("--data", text)]
    with Daemon(*options, "--bind", "tcp://127.0.0.1:0", "--workers", "2") as running:
        yield running


def loader(daemon: Daemon, dataset: str, ranks: int = 1, rank: int = 0, **fields: Any) -> Any:
    fields = {"seed": SEED, "recipe": ORDER} | fields
    if "crops" not in fields["recipe"]:
        fields = {"image_size": 24} | fields
    share = GLOBAL_BATCH // ranks
    return NumpyLoader(
        daemon.endpoint, dataset=dataset, batch_size=share, rank=rank, world_size=ranks, **fields
    )


Row = tuple[int, bytes]
"""A row's sample id and the bytes of its crops."""


def take_steps(source: Any, steps: int | None = None) -> list[list[Row]]:
    """The rows of each batch, of the rest of the epoch or of so many steps."""
    taken: list[list[Row]] = []
    for batch in source:
        crops = batch.crops if source.recipe.crops else (batch.images[np.newaxis],)
        taken.append(
            [
                (sample_id, b"".join(group[:, row].tobytes() for group in crops))
                for row, sample_id in enumerate(batch.sample_ids.tolist())
            ]
        )
        if len(taken) == steps:
            break
    return taken


def take_ranks(
    daemon: Daemon, ranks: int, state: dict[str, Any] | None = None, steps: int | None = None
) -> tuple[list[list[Row]], dict[str, Any]]:
    """The global batches that all ranks together have, and the state after them."""
    parts = []
    for rank in range(ranks):
        with loader(daemon, "mix", ranks, rank) as source:
            if state is not None:
                source.load_state_dict(state)
            parts.append(take_steps(source, steps))
            after = json.loads(json.dumps(source.state_dict()))
    return [[row for part in step for row in part] for step in zip(*parts, strict=True)], after


def planned(home: Path, source: Any, name: str = "mix") -> EpochPlan:
    selection = Selection.open(home / f"{name}.sel")
    plan = source.recipe.plan_epoch(selection.layout, seed=SEED, epoch=0)
    assert isinstance(plan, EpochPlan)
    return plan


def test_the_start_report_says_how_many_draws(daemon: Daemon) -> None:
    assert f"data mix: 84 samples of a, b, {DRAWS} draws an epoch, 3 classes" in daemon.ready


def test_an_epoch_is_the_planned_draws_in_every_batch(daemon: Daemon, home: Path) -> None:
    with loader(daemon, "mix") as source:
        assert len(source) == DRAWS // GLOBAL_BATCH
        plan = planned(home, source)
        steps = take_steps(source)
    assert [[i for i, _ in rows] for rows in steps] == [
        plan.samples(index).tolist() for index in range(plan.batches)
    ]
    selection = Selection.open(home / "mix.sel")
    (first, end, share), (_, _, other) = selection.header.draws.components  # type: ignore[union-attr]
    assert (first, end, share, other) == (0, 53, 7, 3)
    counts = [sum(i < end for i, _ in rows) for rows in steps]
    assert {*counts} <= {8, 9}
    assert abs(sum(counts) - Fraction(7, 10) * DRAWS) < 2
    # Rows of a sample that is drawn again differ.
    drawn = Counter(i for rows in steps for i, _ in rows)
    crops = {row for rows in steps for row in rows}
    assert max(drawn.values()) > 2
    assert len(crops) > 0.98 * DRAWS


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_share_the_batches_of_one_rank(daemon: Daemon, ranks: int) -> None:
    alone, _ = take_ranks(daemon, 1)
    together, _ = take_ranks(daemon, ranks)
    # The rows of a global batch are dealt in order, each draw to one rank.
    assert together == alone
    assert len({id(row) for rows in together for row in rows}) == DRAWS


def test_a_job_resumes_in_the_middle_of_an_epoch_with_other_ranks(daemon: Daemon) -> None:
    whole, _ = take_ranks(daemon, 1)
    first, state = take_ranks(daemon, 3, steps=7)
    second, state = take_ranks(daemon, 1, state, steps=4)
    third, state = take_ranks(daemon, 2, state)
    assert first + second + third == whole
    following, _ = take_ranks(daemon, 1, state)
    assert len(following) == len(whole)
    assert following[0] != whole[0], "the next epoch"


def test_several_crops_of_every_draw(daemon: Daemon, home: Path) -> None:
    fields = ORDER | {"crops": CROPS}
    with loader(daemon, "mix", recipe=fields) as source:
        steps = take_steps(source)
    with loader(daemon, "mix", recipe=fields) as source:
        source.load_state_dict(_state_after(daemon, fields, 5))
        assert take_steps(source) == steps[5:]
    crops = {row for rows in steps for row in rows}
    assert len(crops) == DRAWS, "three crops are never the same by chance"


def _state_after(daemon: Daemon, fields: dict[str, Any], steps: int) -> dict[str, Any]:
    with loader(daemon, "mix", recipe=fields) as source:
        take_steps(source, steps)
        state: dict[str, Any] = source.state_dict()
        return state


def test_a_curriculum_changes_at_its_epochs(daemon: Daemon) -> None:
    classes = []
    with loader(daemon, "curriculum") as source:
        assert len(source) == DRAWS // GLOBAL_BATCH
        for _ in range(4):
            batches = [batch.labels.tolist() for batch in source]
            assert len(batches) == len(source), "steps an epoch stay"
            classes.append({label for labels in batches for label in labels})
    assert classes == [{0}, {1}, {1}, {2}]


def test_names_and_sources_of_drawn_rows(daemon: Daemon, home: Path) -> None:
    """Ids are those of samples: above the number of draws, too, where there are fewer of these."""
    with loader(daemon, "mix") as source:
        batch = next(iter(source))
        sources, names = source.source_ids(batch), source.names(batch.sample_ids)
        with pytest.raises(ConfigError, match="has no sample 84"):
            source.source_ids([84])
    for (dataset, own_id), name in zip(sources, names, strict=True):
        with Dataset.open(home / dataset) as opened:
            assert opened.read_name(own_id) == name


def test_a_few_draws_of_many_samples(home: Path, tmp_path: Path) -> None:
    """Part of the samples come in an epoch; all have ids, names and sources."""
    content = feeder.select("few", {home / "a": None}, tmp_path / "few.sel", epoch_samples=12)
    data = ("--data", f"few={tmp_path / 'few.sel'}", "--workers", "1")
    with Daemon(*data, "--bind", "tcp://127.0.0.1:0") as daemon:
        seen = set()
        with loader(daemon, "few", recipe={}) as source:
            assert len(source) == 1
            for _ in range(4):
                (rows,) = take_steps(source)
                assert len({i for i, _ in rows}) == 12, "each sample once at most"
                seen |= {i for i, _ in rows}
            assert max(seen) > 12
            assert source.source_ids([52]) == [("a", 52)]
            assert len(source.names([52, 13])) == 2
        assert len(seen) > 30, "other samples in each epoch"
        assert request_report(daemon.endpoint, DEADLINE_S).datasets[0].content == content
    names = call_feeder("names", tmp_path / "few.sel", "52")
    assert names.returncode == 0, names.stderr
    assert "has no sample 53, it has 0 .. 52" in error_line(
        call_feeder("names", tmp_path / "few.sel", "53")
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"split": "val"}, "split must be train for a selection with weights or a mix: to eval"),
        ({"recipe": {"shuffle": False}}, "shuffle must be true for a selection with weights or"),
    ],
)
def test_an_evaluation_of_weights_is_one_line(
    daemon: Daemon, fields: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        loader(daemon, "mix", **({"recipe": {}} | fields))
    assert "\n" not in str(caught.value)
    assert "serve one without them, which has every sample once" in str(caught.value)
    with loader(daemon, "mix") as source:  # others are served on
        assert len(take_steps(source, 1)) == 1


def test_a_state_of_other_weights_is_one_line(daemon: Daemon) -> None:
    with loader(daemon, "mix") as source, loader(daemon, "a", recipe={}) as other:
        take_steps(source, 1)
        with pytest.raises(ConfigError, match="dataset"):
            other.load_state_dict(source.state_dict())


def test_preview_draws_the_crops_of_a_weighted_selection(
    daemon: Daemon, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[list[Note]] = []
    monkeypatch.setattr(
        "feeder.cli.contact_sheet.draw_contact_sheet",
        lambda *arguments, **texts: (
            notes.append(texts["notes"]),
            draw_contact_sheet(*arguments, **texts),
        ),
    )
    served = ("--from", daemon.endpoint, "--dataset", "mix")
    for number, words in enumerate([(home / "mix.sel",), served]):
        out = tmp_path / f"{number}.png"
        more = ("--images", "5", "--batch-size", str(GLOBAL_BATCH), "--out", out)
        result = call_feeder("preview", *words, *more)
        assert result.returncode == 0, result.stderr
        assert out.stat().st_size > 1000
    known, sent = notes
    assert [note.facts[0] for note in known] == [note.facts[0] for note in sent]
    assert any(note.operations for note in known)
    assert not any(note.operations for note in sent), "the number of a draw is not sent"
    evaluation = ("--split", "val", "--out", tmp_path / "val.png")
    line = error_line(call_feeder("preview", home / "mix.sel", *evaluation))
    assert "split must be train for a selection with weights" in line
    assert not (tmp_path / "val.png").exists()
