"""How often samples are drawn: the weights, shares and draws that ``feeder select`` writes."""

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feeder
from feeder.choose.members import open_samples
from feeder.choose.weights import to_integers
from feeder.dataset.selection import Selection
from feeder.errors import ConfigError
from feeder.plan.draws import DRAWS_MAX, WEIGHT_MAX, Draws
from feeder.plan.epoch import EpochPlan, LastBatch
from tests.choose.animals import BIRDS, CATS, refused, select
from tests.support.sources import call_feeder
from tests.support.synthetic_sets import FLOATS, MULTI, write_labelled

CLASSES = (*CATS, "owl")
CLASS_OF = {f"cat{n:02}.jpg": CATS[n % 3] for n in range(23)}
CLASS_OF |= {f"bird{n:02}.jpg": BIRDS[n % 2] for n in range(11)}


def read_draws(path: Path) -> Draws:
    draws = Selection.open(path).layout.draws
    assert draws is not None
    return draws


def read_weights(path: Path, column: int = 0) -> dict[str, int]:
    """The weight of each sample by name."""
    with open_samples(path) as opened:
        weights = read_draws(path).weights[column].tolist()
        return {opened.read_name(row): weight for row, weight in enumerate(weights)}


def count_classes(path: Path, epoch: int = 0) -> Counter[str]:
    """How often an epoch draws each class."""
    with open_samples(path) as opened:
        plan = EpochPlan(
            opened.layout,
            batch_size=4,
            seed=1,
            epoch=epoch,
            shuffle=True,
            last_batch=LastBatch.PAD,
        )
        ids = np.concatenate([plan.samples(index) for index in range(plan.batches)])
        return Counter(CLASS_OF[opened.read_name(i)] for i in ids.tolist())


def write_csv(path: Path, head: str, rows: Mapping[str, object]) -> str:
    path.write_text("".join(f"{line}\n" for line in [head, *(f"{k},{v}" for k, v in rows.items())]))
    return str(path)


def write_array(path: Path, values: Sequence[Any] | np.ndarray) -> str:
    np.save(path, np.array(values), allow_pickle=True)
    return str(path)


# --- Weights ------------------------------------------------------------------------------------


def test_weights_by_name_are_those_of_the_samples(home: Path, tmp_path: Path) -> None:
    weights = {name: number % 5 for number, name in enumerate(CLASS_OF)}
    file = write_csv(tmp_path / "w.csv", "name,weight", weights)
    out = select(home, "cats", "birds", "--weights", file)
    assert read_weights(out) == weights
    assert Selection.open(out).layout.samples == len(CLASS_OF), "as many draws as samples"


def test_names_of_samples_that_are_not_chosen_do_no_harm(home: Path, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "w.csv", "name,weight", dict.fromkeys(CLASS_OF, 2))
    out = select(home, "cats", "birds", "--weights", file, "--classes", "owl")
    assert read_weights(out) == {name: 2 for name, c in CLASS_OF.items() if c == "owl"}


def test_weights_by_class_are_those_of_all_of_its_samples(home: Path, tmp_path: Path) -> None:
    by_class = {"owl": 7, "cat": 1, "fox": 0, "dog": 3}
    file = write_csv(tmp_path / "w.csv", "class,weight", by_class)
    out = select(home, "cats", "birds", "--weights", file)
    assert read_weights(out) == {name: by_class[c] for name, c in CLASS_OF.items()}


def test_weights_by_class_are_of_the_classes_that_relabelling_gives(
    home: Path, tmp_path: Path
) -> None:
    (tmp_path / "r.csv").write_text("cat00.jpg,wolf\n")
    by_class = {"cat": 1, "dog": 1, "fox": 1, "wolf": 9}
    file = write_csv(tmp_path / "w.csv", "class,weight", by_class)
    out = select(home, "cats", "--relabel", str(tmp_path / "r.csv"), "--weights", file)
    assert read_weights(out) == {f"cat{n:02}.jpg": 1 if n else 9 for n in range(23)}


def test_an_array_has_a_weight_for_each_sample_of_the_dsts_in_turn(
    home: Path, tmp_path: Path
) -> None:
    file = write_array(tmp_path / "w.npy", np.arange(34, dtype=np.float32))
    out = select(home, "cats", "birds", "--weights", file, "--exclude-classes", "dog")
    assert read_weights(out) == {
        name: place for place, name in enumerate(CLASS_OF) if CLASS_OF[name] != "dog"
    }


def test_an_array_for_a_selection_is_in_the_order_of_its_ids(home: Path, tmp_path: Path) -> None:
    first = select(home, "cats", "birds", "--classes", "cat", name="first")
    with open_samples(first) as opened:
        names = [opened.read_name(row) for row in range(opened.layout.samples)]
    file = write_array(tmp_path / "w.npy", np.arange(len(names)))
    out = select(home, first.name, "--weights", file)
    assert read_weights(out) == {name: place for place, name in enumerate(names)}


def test_an_array_may_have_a_weight_for_each_class(home: Path, tmp_path: Path) -> None:
    file = write_array(tmp_path / "w.npy", [4, 3, 2, 1])
    out = select(home, "cats", "birds", "--weights", file)
    by_class = dict(zip(CLASSES, [4, 3, 2, 1], strict=True))
    assert read_weights(out) == {name: by_class[c] for name, c in CLASS_OF.items()}


def test_a_curriculum_has_weights_by_epoch(home: Path, tmp_path: Path) -> None:
    only = {
        c: write_csv(tmp_path / f"{c}.csv", "class,weight", {k: int(k == c) for k in CATS})
        for c in CATS
    }
    columns = [f"--weights={epoch}={only[c]}" for epoch, c in ((5, "fox"), (0, "cat"), (2, "dog"))]
    out = select(home, "cats", *columns, "--epoch-samples", "20")
    assert read_draws(out).epochs == (0, 2, 5)
    drawn = [{*count_classes(out, epoch)} for epoch in (0, 1, 2, 4, 5, 1000)]
    assert drawn == [{"cat"}, {"cat"}, {"dog"}, {"dog"}, {"fox"}, {"fox"}]


def test_draws_without_weights_are_of_all_samples_alike(home: Path) -> None:
    out = select(home, "cats", "birds", "--epoch-samples", "12")
    assert {*read_weights(out).values()} == {1}
    assert Selection.open(out).layout.samples == 12
    assert {*read_weights(out)} == {*CLASS_OF}


# --- Whole numbers ------------------------------------------------------------------------------

numbers = st.one_of(
    st.integers(0, 2**40).map(float),
    st.floats(0, 1e308, allow_subnormal=True),
    st.floats(0, 1),
)


@given(st.lists(numbers, min_size=1, max_size=30).filter(any))
def test_weights_become_whole_numbers_as_documented(weights: list[float]) -> None:
    whole = to_integers("weights", np.array(weights)).tolist()
    if all(weight == int(weight) for weight in weights) and max(weights) <= WEIGHT_MAX:
        assert whole == weights
        return
    largest = Fraction(max(weights))
    assert max(whole) == WEIGHT_MAX
    for weight, number in zip(weights, whole, strict=True):
        exact = Fraction(weight) / largest * WEIGHT_MAX
        # Half to even, of a quotient and product that are rounded themselves.
        assert abs(number - exact) <= Fraction(1, 2) + Fraction(1, 2**19) or number == 1
        assert (number >= 1) == (weight > 0)


def test_halves_are_rounded_to_even() -> None:
    scale = 2.0 / WEIGHT_MAX  # so that the scaled weights are these numbers
    given_weights = np.array([0.5, 1.5, 2.5, 3.5, WEIGHT_MAX]) * scale
    assert (given_weights / given_weights.max() * WEIGHT_MAX).tolist()[:4] == [0.5, 1.5, 2.5, 3.5]
    assert to_integers("weights", given_weights).tolist()[:4] == [1, 2, 2, 4]


@pytest.mark.parametrize("weight", [-1.0, -1e-300, np.nan, np.inf, -np.inf])
def test_what_is_no_weight_is_one_line(weight: float) -> None:
    with pytest.raises(ConfigError, match=rf"^W: a weight is {weight}: weights are numbers from"):
        to_integers("W", np.array([1.0, weight, 2.0]))


# --- Balance ------------------------------------------------------------------------------------


def test_balanced_classes_are_drawn_equally_often(home: Path) -> None:
    sizes = Counter(CLASS_OF.values())
    assert len({*sizes.values()}) > 2
    out = select(home, "cats", "birds", "--balance", "classes", "--epoch-samples", "400")
    for epoch in range(3):
        for name, count in count_classes(out, epoch).items():
            # Each sample of a class comes so often or once more.
            assert abs(count - 100) < sizes[name], name


def test_balance_by_the_root_lies_between(home: Path) -> None:
    sizes = Counter(CLASS_OF.values())
    roots = {name: size**0.5 for name, size in sizes.items()}
    out = select(home, "cats", "birds", "--balance", "sqrt", "--epoch-samples", "4000")
    for name, count in count_classes(out).items():
        assert abs(count - 4000 * roots[name] / sum(roots.values())) < sizes[name], name


def test_balance_is_of_what_was_chosen(home: Path) -> None:
    out = select(home, "cats", "birds", "--classes", "owl,fox", "--balance", "classes")
    weights, sizes = read_weights(out), Counter(CLASS_OF.values())
    owls, foxes = (
        sum(w for n, w in weights.items() if CLASS_OF[n] == name) for name in ("owl", "fox")
    )
    assert sizes["owl"] != sizes["fox"]
    assert owls == pytest.approx(foxes, rel=1e-8)


# --- Mixes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mix", "parts"),
    [
        (["cats=0.7", "birds=0.3"], [7, 3]),
        (["birds=1", "cats=2"], [2, 1]),
        (["cats=0.000000001", "birds=0.5"], [1, 500_000_000]),
        (["cats=50", "birds=50.0"], [1, 1]),
    ],
)
def test_a_mix_has_the_shares_of_the_dsts(home: Path, mix: list[str], parts: list[int]) -> None:
    words = [word for text in mix for word in ("--mix", text)]
    out = select(home, "cats", "birds", *words, "--epoch-samples", "50")
    draws = read_draws(out)
    assert [tuple(part) for part in draws.components] == [(0, 23, parts[0]), (23, 34, parts[1])]
    with open_samples(out) as opened:
        assert [opened.read_name(row) for row in (0, 22, 23, 33)] == [
            "cat00.jpg",
            "cat22.jpg",
            "bird00.jpg",
            "bird10.jpg",
        ]


def test_weights_in_a_mix_are_relative_within_a_dst(home: Path, tmp_path: Path) -> None:
    """Those of one DST are not rounded away because another one's are larger by far."""
    birds = [n * 1e-9 for n in range(1, 12)]
    weights = write_array(tmp_path / "w.npy", [1e9] * 23 + birds)
    mix = ("--mix", "cats=1", "--mix", "birds=1", "--epoch-samples", "9")
    found = read_weights(select(home, "cats", "birds", *mix, "--weights", weights))
    ratios = [found[f"bird{n - 1:02}.jpg"] / found["bird00.jpg"] for n in range(1, 12)]
    assert ratios == pytest.approx(range(1, 12), rel=1e-6)


def test_a_mix_names_dsts_by_their_text_too(home: Path) -> None:
    cats, birds = str(home / "cats"), str(home / "birds")
    words = ("--mix", f"{birds}=3", "--mix", f"{cats}=1", "--epoch-samples", "8")
    assert [part.share for part in read_draws(select(home, cats, birds, *words)).components] == [
        1,
        3,
    ]


def test_a_mix_of_selections_of_the_same_datasets(home: Path, tmp_path: Path) -> None:
    """Components are by DST; weights and a curriculum hold within them."""
    wild = select(home, "cats", "birds", "--classes", "fox,owl", name="wild")
    tame = select(home, "cats", "birds", "--classes", "cat,dog", name="tame")
    file = write_csv(tmp_path / "w.csv", "class,weight", {"cat": 3, "dog": 1, "fox": 1, "owl": 0})
    out = select(
        home,
        *(wild.name, tame.name, "--mix", "wild.sel=1", "--mix", "tame.sel=3"),
        *("--weights", file, "--epoch-samples", "100"),
    )
    counts = count_classes(out)
    assert counts["fox"] == 25
    assert "owl" not in counts
    cats = sum(c == "cat" for c in CLASS_OF.values())
    dogs = sum(c == "dog" for c in CLASS_OF.values())
    assert abs(counts["cat"] - 75 * 3 * cats / (3 * cats + dogs)) < cats


# --- From Python --------------------------------------------------------------------------------


def test_weights_from_python_are_those_of_the_ids_given(home: Path, tmp_path: Path) -> None:
    given_ids = {home / "cats": [5, 1, 9], str(home / "birds"): None}
    weights = {str(home / "cats"): [50, 10, 90], home / "birds": np.arange(11) + 1}
    content = feeder.select("w", given_ids, tmp_path / "w.sel", weights=weights, epoch_samples=17)
    expected = {"cat05.jpg": 50, "cat01.jpg": 10, "cat09.jpg": 90}
    expected |= {f"bird{n:02}.jpg": n + 1 for n in range(11)}
    assert read_weights(tmp_path / "w.sel") == expected
    assert Selection.open(tmp_path / "w.sel").layout.samples == 17
    others = [
        feeder.select("w", given_ids, tmp_path / "o.sel", **fields)  # type: ignore[arg-type]
        for fields in ({}, {"weights": weights}, {"weights": weights, "epoch_samples": 18})
    ]
    assert len({content, *others}) == 4, "weights and draws are part of the content"


def test_a_column_of_as_many_samples_as_classes_is_by_sample_from_python(
    home: Path, tmp_path: Path
) -> None:
    feeder.select(
        "w", {home / "cats": [0, 3, 6]}, tmp_path / "w.sel", weights={home / "cats": [1, 2, 3]}
    )
    assert read_weights(tmp_path / "w.sel") == {"cat00.jpg": 1, "cat03.jpg": 2, "cat06.jpg": 3}


def test_weights_from_python_of_samples_that_several_datasets_have(
    home: Path, tmp_path: Path
) -> None:
    """Each weight counts, in any order; two of one sample must be the same."""
    some, cats = select(home, "cats", "--classes", "cat", name="some"), home / "cats"
    parts: list[tuple[Path, list[int], list[int]]] = [
        (cats, [0, 1, 2], [5, 6, 7]),
        (some, [1], [9]),
    ]
    for order in (parts, parts[::-1]):
        chosen, weights = {p: ids for p, ids, _ in order}, {p: own for p, _, own in order}
        feeder.select("w", chosen, tmp_path / "w.sel", weights=weights)
        expected = {"cat00.jpg": 5, "cat01.jpg": 6, "cat02.jpg": 7, "cat03.jpg": 9}
        assert read_weights(tmp_path / "w.sel") == expected
    with pytest.raises(ConfigError, match=r"sample 0 of .*cats, .* has another weight in .*some"):
        feeder.select(
            "w", {cats: [0], some: [0]}, tmp_path / "x.sel", weights={cats: [1], some: [2]}
        )


def test_balance_and_shares_from_python_are_those_of_the_command(
    home: Path, tmp_path: Path
) -> None:
    everything = {home / "cats": None, home / "birds": None}
    content = feeder.select("b", everything, tmp_path / "b.sel", balance="sqrt", epoch_samples=9)
    out = select(home, "cats", "birds", "--balance", "sqrt", "--epoch-samples", "9")
    assert content == Selection.open(out).content
    shares = {home / "birds": 0.3, home / "cats": 0.7}
    content = feeder.select("m", everything, tmp_path / "m.sel", shares=shares, epoch_samples=50)
    out = select(
        home, "cats", "birds", "--mix", "cats=0.7", "--mix", "birds=0.3", "--epoch-samples", "50"
    )
    assert content == Selection.open(out).content


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"weights": {"cats": [1, 2]}}, "must be an array of 23 numbers, one for each of its"),
        ({"weights": {}}, "must be an array of 23 numbers"),
        ({"weights": {"cats": np.ones(23), "dogs": [1]}}, "there are weights of .*dogs, and no"),
        ({"weights": {"cats": ["1"] * 23}}, "must be an array of 23 numbers"),
        ({"weights": {"cats": [-1.0] * 23}}, "a weight is -1.0"),
        ({"weights": {"cats": np.zeros(23)}}, "all weights are 0"),
        ({"weights": {"cats": np.ones(23)}, "balance": "sqrt"}, "give one of them"),
        ({"balance": "class"}, "balance must be classes or sqrt, got 'class'"),
        ({"shares": {"cats": 0.5}}, "need --epoch-samples N"),
        ({"shares": {"cats": float("nan")}, "epoch_samples": 3}, "a share above 0"),
        ({"shares": {"dogs": 1}, "epoch_samples": 3}, "dogs: no DST has this name"),
        ({"epoch_samples": 0}, "epoch.samples 0: it must be 1 .."),
        ({"epoch_samples": -5}, "epoch.samples -5: it must be 1 .."),
    ],
)
def test_bad_weights_from_python_are_one_line(
    home: Path, tmp_path: Path, fields: dict[str, Any], text: str
) -> None:
    def by_place(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {home / name: own for name, own in value.items()}

    fields = {name: by_place(value) for name, value in fields.items()}
    with pytest.raises(ConfigError, match=text) as caught:
        feeder.select("x", {home / "cats": None}, tmp_path / "x.sel", **fields)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "x.sel").exists()


# --- What is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--epoch-samples 0", f"--epoch-samples 0: it must be 1 .. {DRAWS_MAX:,}"),
        ("--epoch-samples -1", "--epoch-samples -1: it must be"),
        ("--epoch-samples 2147483648", "it must be 1 .. "),
        ("--weights W --balance sqrt", "--weights and --balance: give one of them"),
        ("--weights W --weights 3=W --epoch-samples 9", "write EPOCH=FILE, for each"),
        ("--weights 0=W --weights 3=W", "need --epoch-samples N, the same in all epochs"),
        ("--weights 0=W --weights 0=W --epoch-samples 9", "epoch 0 is given twice"),
        ("--weights 0=W --weights 2147483648=W --epoch-samples 9", "or too large"),
        ("--weights=", "--weights : write EPOCH=FILE"),
        ("--weights 99999999999=W", "it cannot be read: No such file"),
        ("--weights 3=W", "none holds at epoch 0, the first is 3=…"),
        ("--weights /no/file.csv", "--weights /no/file.csv: it cannot be read: No such file"),
        ("--weights /no/file.npy", "--weights /no/file.npy: it cannot be read: No such file"),
        ("--weights /", "it cannot be read: "),
        ("--mix cats=1 --mix birds=1", "--mix and weights by epoch need --epoch-samples N"),
        ("--mix cats=1 --epoch-samples 9", "--mix gives no share to "),
        ("--mix cats=0 --mix birds=1 --epoch-samples 9", "--mix cats=0: write DST=SHARE with"),
        ("--mix cats=-1 --mix birds=1 --epoch-samples 9", "--mix cats=-1: write DST=SHARE"),
        ("--mix cats=nan --mix birds=1 --epoch-samples 9", "--mix cats=nan: write DST=SHARE"),
        ("--mix cats=1e999999 --mix birds=1 --epoch-samples 9", "--mix cats=1e999999: write"),
        ("--mix cats --mix birds=1 --epoch-samples 9", "cats: write DST=SHARE"),
        ("--mix =1 --mix birds=1 --epoch-samples 9", "--mix =1: write DST=SHARE"),
        ("--mix cats=0.0000000001 --mix birds=1 --epoch-samples 9", "9 digits at most"),
        ("--mix cats=1 --mix cats=2 --epoch-samples 9", "--mix cats=2: cats has a share already"),
        ("--mix cats=1 --mix HOME/cats=2 --mix birds=1 --epoch-samples 9", "has a share already"),
        ("--mix catz=1 --mix birds=1 --epoch-samples 9", "no DST has this name; nearest is 'cats'"),
        ("--mix cats=1 --mix birds=1 --epoch-samples 9 --classes owl",
         "/cats: from epoch 0 on, none of its samples can be drawn"),
        ("--mix cats=1 --mix birds=1 --epoch-samples 9 --weights 0=W --weights 4=NO_BIRDS",
         "/birds: from epoch 4 on, none of its samples can be drawn: none is chosen, or their"),
    ],
)  # fmt: skip
def test_bad_options_are_one_line(home: Path, tmp_path: Path, words: str, text: str) -> None:
    file = write_array(tmp_path / "w.npy", np.ones(34))
    no_birds = write_array(tmp_path / "n.npy", [1] * 23 + [0] * 11)
    words = words.replace("NO_BIRDS", no_birds).replace("W", file).replace("HOME", str(home))
    assert text in refused(home, "cats", "birds", *words.split())


def test_datasets_of_the_same_name_in_a_mix_are_named_by_their_texts(
    home: Path, tmp_path: Path
) -> None:
    (tmp_path / "cats").symlink_to(home / "birds")
    words = [str(home / "cats"), str(tmp_path / "cats"), "--epoch-samples", "9"]
    line = refused(home, *words, "--mix", "cats=1")
    assert "--mix cats: several DSTs have this name: give one's whole path" in line
    out = select(home, *words, *(f"--mix={text}={n}" for n, text in enumerate(words[:2], 1)))
    assert [part.share for part in read_draws(out).components] == [1, 2]


def test_samples_in_common_to_a_mix_are_one_line(home: Path) -> None:
    select(home, "cats", "birds", "--classes", "cat", name="some")
    line = refused(
        home, "cats", "some.sel", "--mix=cats=1", "--mix=some.sel=1", "--epoch-samples=9"
    )
    assert "some.sel and " in line
    assert "have samples in common" in line
    assert "--exclude-list" in line


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "its first line must be name,weight or class,weight, it is ''"),
        ("cat00.jpg,1\n", "its first line must be name,weight or class,weight"),
        ("name,weight,more\n", "its first line must be"),
        ("class,weight\ncat,1\ndog\n", "line 3 is 'dog', not a name and a number"),
        ("class,weight\ncat,much\n", "line 2 is 'cat,much', not a name and a number"),
        ("class,weight\ncat,-1\n", "line 2: weight -1 of cat: weights are numbers from 0 on"),
        ("class,weight\ncat,nan\n", "line 2: weight nan of cat"),
        ("class,weight\n\ncat,inf\n", "line 3: weight inf of cat"),
        ("class,weight\ncat,1\ncat,1\n", "line 3 gives cat a second weight"),
        ("class,weight\ncat,1\ndogs,1\nfox,1\n", "there is no class dogs; nearest is 'dog'"),
        ("class,weight\ncat,1\nfox,1\n", "class dog has samples and no weight"),
        ("class,weight\ncat,0\ndog,0\nfox,0\n", "all weights are 0: no sample would be drawn"),
        ("name,weight\ncat00.jpg,1\n", "sample cat01.jpg has no weight"),
        ('class,weight\n"cat,1\n', "it is not CSV"),
        ("class,weight\nca\0t,1\n", "there is no class "),
    ],
)
def test_bad_tables_are_one_line(home: Path, tmp_path: Path, content: str, text: str) -> None:
    (tmp_path / "w.csv").write_text(content)
    line = refused(home, "cats", "--weights", str(tmp_path / "w.csv"))
    assert text in line
    assert f"--weights {tmp_path / 'w.csv'}" in line


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (np.ones(22), "it has 22 weights, for 23 samples of all DSTs or 3 classes: neither; a CSV"),
        (np.ones((23, 1)), "it must be an array of numbers (n,)"),
        (np.array(1.0), "it must be an array of numbers (n,)"),
        (np.array(["1"] * 23), "it must be an array of numbers (n,)"),
        (np.ones(23, complex), "it must be an array of numbers (n,)"),
        (np.array([object()]), "it is not an array of numpy"),
        (np.full(23, -0.5), "a weight is -0.5: weights are numbers from 0 on"),
        (np.array([1.0, 2.0, np.nan]), "a weight is nan: weights are numbers from 0 on"),
        (np.array([np.inf] + [1.0] * 22), "a weight is inf"),
        (np.zeros(23), "all weights are 0"),
        (np.array([0, 0, 0]), "all weights are 0"),
    ],
)
def test_bad_arrays_are_one_line(home: Path, tmp_path: Path, values: np.ndarray, text: str) -> None:
    file = write_array(tmp_path / "w.npy", values)
    assert f"--weights {file}: {text}" in refused(home, "cats", "--weights", file)


def test_files_that_are_no_arrays_are_one_line(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "w.npy"
    np.save(path, np.ones(23))
    whole = path.read_bytes()
    archive = io.BytesIO()
    np.savez(archive, weights=np.ones(23))
    endless = whole.replace(b"(23,), }" + 20 * b" ", b"(%d,), }" % 10**22)
    for data in (b"", b"1,2,3", whole[:20], whole[:-1], endless, archive.getvalue()):
        path.write_bytes(data)
        line = refused(home, "cats", "--weights", str(path))
        assert "it is not an array of numpy (np.save)" in line


def test_an_array_of_as_many_samples_as_classes_is_one_line(tmp_path: Path) -> None:
    write_labelled(tmp_path / "d", MULTI, samples=11)
    file = write_array(tmp_path / "w.npy", np.ones(11))
    line = refused(tmp_path, "d", "--weights", file)
    assert "it has 11 weights, for 11 samples of all DSTs or 11 classes: either, as these" in line
    other = write_array(tmp_path / "o.npy", np.ones(10))
    assert "neither; a CSV file says which" in refused(tmp_path, "d", "--weights", other)


@pytest.mark.parametrize("labels", [MULTI, FLOATS], ids=lambda labels: labels.kind)
def test_labels_that_are_not_one_class_are_weighted_by_name(tmp_path: Path, labels: Any) -> None:
    write_labelled(tmp_path / "d", labels)
    line = refused(tmp_path, "d", "--balance", "classes")
    assert f"samples with labels of kind {labels.kind} have not one class each" in line
    names = {f"s{n:03}": n for n in range(23)}
    file = write_csv(tmp_path / "w.csv", "name,weight", names)
    assert read_weights(select(tmp_path, "d", "--weights", file)) == names
    by_class = write_csv(tmp_path / "c.csv", "class,weight", {"class0": 1})
    assert "give weights by name" in refused(tmp_path, "d", "--weights", by_class)


def test_a_selection_of_a_weighted_one_is_one_line(home: Path) -> None:
    select(home, "cats", "--balance", "classes", name="even")
    line = refused(home, "even.sel", "birds")
    assert "is drawn by weight, which a selection of it would lose: select from its" in line
    # Its samples are a list as those of any selection.
    rest = select(home, "cats", "birds", "--exclude-list", str(home / "even.sel"), name="rest")
    assert Selection.open(rest).samples == 11


def test_it_says_how_many_draws_there_are(home: Path) -> None:
    words = ("--balance", "classes", "--epoch-samples", "1234")
    result = call_feeder("select", "x", home / "cats", *words, "--out", home / "x.sel")
    lines = result.stdout.splitlines()
    assert lines[0] == f"chose 23 of 23 samples into {home / 'x.sel'}"
    assert lines[2] == "  1,234 draws an epoch"
    assert Selection.open(home / "x.sel").header.options == {
        "balance": "classes",
        "epoch_samples": "1234",
    }


@pytest.mark.parametrize(
    ("datasets", "fields", "line"),
    [
        ({}, {}, "datasets is empty"),
        ({"cats": [100]}, {"weights": {"cats": [1.0]}}, "cats has the ids 0 .. "),
        ({"cats": None}, {"epoch_samples": 10.0}, "it must be a whole number"),
        ({"cats": None}, {"epoch_samples": "10"}, "it must be a whole number"),
    ],
)
def test_what_python_gives_is_checked_before_a_file_is_replaced(
    datasets: dict[str, Any], fields: dict[str, Any], line: str, home: Path, tmp_path: Path
) -> None:
    out = tmp_path / "s.sel"
    given = {home / name: ids for name, ids in datasets.items()}
    if "weights" in fields:
        fields = {"weights": {home / name: own for name, own in fields["weights"].items()}}
    with pytest.raises(ConfigError, match=line):
        feeder.select("s", given, out, **fields)
    assert not out.exists()


def test_draws_may_be_an_integer_of_numpy(home: Path, tmp_path: Path) -> None:
    feeder.select("s", {home / "cats": None}, tmp_path / "s.sel", epoch_samples=np.int64(10))
    assert Selection.open(tmp_path / "s.sel").layout.samples == 10


@pytest.mark.parametrize(
    "option",
    ["--list", "--exclude-list", "--fraction", "--classes", "--exclude-classes", "--relabel"],
)
def test_an_empty_value_is_an_error_not_all_samples(option: str, home: Path) -> None:
    """As of a variable of the shell that is not set."""
    assert option in refused(home, "cats", f"{option}=")
