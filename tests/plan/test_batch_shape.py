"""Crops and phases of recipes: canonical, bounded, and plain recipes in force at every epoch."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ConfigError
from feeder.plan.batch_shape import MAX_CROPS, MAX_PHASES
from feeder.plan.recipe import Recipe, parse_field

CROPS = [
    {"count": 2, "size": 224, "scale": [0.4, 1.0]},
    {"count": 6, "size": 96, "scale": [0.05, 0.4], "ratio": [1, 1]},
]
epochs = st.integers(0, 2**31 - 1)


def by_epoch(values: st.SearchStrategy[int]) -> st.SearchStrategy[dict[int, int]]:
    first = st.tuples(st.just(0), values)
    more = st.dictionaries(epochs, values, max_size=20)
    return st.tuples(first, more).map(lambda pair: {**pair[1], pair[0][0]: pair[0][1]})


schedules = by_epoch(st.integers(8, 64))


def train(**fields: Any) -> Recipe:
    return Recipe.for_split("train", batch_size=4, **fields)


@given(sizes=schedules, magnitudes=by_epoch(st.integers(0, 30)), at=epochs)
def test_the_recipe_in_force_has_the_latest_values(
    sizes: dict[int, int], magnitudes: dict[int, int], at: int
) -> None:
    recipe = train(image_size=sizes, rand_augment_magnitude=magnitudes, hue=0.1)
    for epoch in {at, *sizes, *magnitudes}:
        now = recipe.at(epoch)
        plain = train(
            image_size=sizes[max(each for each in sizes if each <= epoch)],
            rand_augment_magnitude=magnitudes[max(each for each in magnitudes if each <= epoch)],
            hue=0.1,
        )
        assert now == plain
        assert now.fingerprint() == plain.fingerprint(), "caches and readers are shared with it"
        assert now in recipe.over_epochs()
    assert recipe.at(0).image_size == recipe.image_size


@given(sizes=schedules)
def test_schedules_with_equal_meaning_are_equal(sizes: dict[int, int]) -> None:
    recipe = train(image_size=sizes)
    texts = {f"{epoch}": size for epoch, size in reversed(sizes.items())}
    phases = [
        {"epoch": epoch, "image_size": size} for epoch, size in sorted(sizes.items()) if epoch
    ]
    repeated = sizes | {
        epoch + 1: size for epoch, size in sizes.items() if epoch + 1 not in sizes and epoch < 2**30
    }
    for other in (
        train(image_size=texts),
        train(image_size=sizes[0], phases=phases),
        *([train(image_size=repeated)] if len(repeated) < MAX_PHASES else []),
        msgspec.msgpack.decode(msgspec.msgpack.encode(recipe), type=Recipe),
    ):
        assert other == recipe
        assert other.fingerprint() == recipe.fingerprint()
    if len({*sizes.values()}) == 1:
        assert recipe == train(image_size=sizes[0])
        assert recipe.fingerprint() == train(image_size=sizes[0]).fingerprint()


def test_scale_and_magnitude_change_alone() -> None:
    recipe = train(scale={"0": [0.5, 1], "4": [0.25, 1]}, rand_augment_magnitude={"0": 5, "9": 12})
    seen = [(now.scale, now.rand_augment_magnitude) for now in recipe.over_epochs()]
    assert seen == [((0.5, 1.0), 5), ((0.25, 1.0), 5), ((0.25, 1.0), 12)]


def test_groups_of_crops_are_recipes_with_one_crop() -> None:
    recipe = train(crops=CROPS, hue=0.1)
    assert recipe.group_shapes == ((2, 224), (6, 96))
    assert recipe.crop_sizes == (224, 224, *[96] * 6)
    assert recipe.of_group(0) == train(image_size=224, scale=(0.4, 1.0), hue=0.1)
    small = train(image_size=96, scale=(0.05, 0.4), ratio=(1.0, 1.0), hue=0.1)
    assert recipe.of_crops() == [recipe.of_group(0)] * 2 + [small] * 6
    plain = train(image_size=96)
    assert (plain.group_shapes, plain.of_crops()) == (((1, 96),), [plain])


def test_groups_are_blurred_and_solarised_as_they_say() -> None:
    """As the two global and the local views of DINO are."""
    views = [
        {"count": 1, "size": 64, "blur_probability": 1.0},
        {"count": 1, "size": 64, "blur_probability": 0.1, "solarise_probability": 0.2},
        {"count": 6, "size": 32, "blur_probability": 0.0},
        {"count": 1, "size": 32},
    ]
    recipe = train(crops=views, blur_probability=0.5)
    assert [one.blur_probability for one in map(recipe.of_group, range(4))] == [1, 0.1, 0, 0.5]
    assert [one.solarise_probability for one in map(recipe.of_group, range(4))] == [0, 0.2, 0, 0]
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(recipe), type=Recipe)
    assert (again, again.fingerprint()) == (recipe, recipe.fingerprint())
    said = train(crops=[*views[:3], views[3] | {"blur_probability": 0.5}], blur_probability=0.5)
    assert said == recipe
    with pytest.raises(ConfigError, match=r"crops\[0\].blur_probability must be a number 0"):
        train(crops=[{"count": 1, "size": 64, "blur_probability": 2}])


def test_groups_take_what_they_leave_out_from_the_recipe() -> None:
    recipe = train(crops=[[2, 64], {"count": 1, "size": 32, "scale": [0.1, 0.2]}], scale=[0.3, 1])
    assert [group.scale for group in recipe.crops] == [(0.3, 1.0), (0.1, 0.2)]
    assert {group.ratio for group in recipe.crops} == {(3 / 4, 4 / 3)}
    _, value = parse_field('crops=[[2,64,[0.3,1]],{"count":1,"size":32,"scale":[0.1,0.2]}]')
    assert train(crops=value) == recipe
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(recipe), type=Recipe)
    assert (again, again.fingerprint()) == (recipe, recipe.fingerprint())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_size": {}}, 'image_size by epoch is empty: give its value from epoch "0" on'),
        ({"image_size": {"30": 64}}, "image_size by epoch begins at epoch 30: give its value from"),
        ({"scale": {"3": [0.1, 1]}}, "scale by epoch begins at epoch 3"),
        ({"image_size": {"0": 64, "x": 96}}, "has the key 'x': keys are epochs, whole numbers 0"),
        ({"image_size": {"0": 64, "-1": 96}}, "has the key '-1'"),
        ({"image_size": {"0": 64, 1.5: 96}}, "has the key 1.5"),
        ({"image_size": {"0": 64, "9" * 30: 96}}, "has the key '999"),
        ({"image_size": {"0": 64, 0: 96}}, "image_size by epoch has epoch 0 twice"),
        ({"image_size": {"0": None}}, "image_size by epoch has no value at epoch 0"),
        ({"image_size": {"0": 64, "3": 4096}}, "image_size from epoch 3 on must be a whole number"),
        ({"image_size": {"0": 64, "3": "96"}}, "image_size from epoch 3 on must be a whole number"),
        ({"image_size": {"0": 4}}, "image_size must be a whole number 8 .. 2048, got 4"),
        ({"scale": {"0": [0.1, 1], "3": [1, 2]}}, "scale from epoch 3 on must be two numbers"),
        ({"image_size": {f"{e}": 32 + e for e in range(99)}}, "may change at 63 epochs, got 98"),
        ({"phases": [[30, 64], [20, 96]]}, "the epochs of phases must rise, got 20 after 30"),
        ({"phases": [[0, 64]]}, "the epoch of a phase must be a whole number 1 .."),
        ({"phases": 5}, "phases must be a list of tables, got 5"),
        (
            {"phases": [{"epoch": 3, "size": 64}]},
            "phases[0] has no field 'size'; it has epoch, image_size",
        ),
        ({"phases": [[3, 64]], "scale": {"0": [0.1, 1]}}, "give either phases or scale by epoch"),
        ({"crop": "centre", "image_size": {"0": 64, "5": 320}}, "resize_size must be a whole numb"),
        ({"crops": {}}, "crops must be a list of groups"),
        ({"crops": None}, "crops must be a list of groups"),
        ({"crops": [[2, 64, 0]]}, "crops[0].scale must be two numbers"),
        ({"phases": {}}, "phases must be a list of tables, got {}"),
        ({"crops": 2}, "crops must be a list of groups, as [{count = 2, size = 224}, "),
        ({"crops": [5]}, "crops[0] must be a table such as {count = 2, size = 224, scale = "),
        ({"crops": [{"count": 2}]}, "crops[0] has no size: write {count = …, size = …}"),
        ({"crops": [{"cout": 2, "size": 9}]}, "crops[0] has no field 'cout'; nearest is 'count'"),
        ({"crops": [[2, 64], [0, 32]]}, "crops[1].count must be a whole number 1 .. 32, got 0"),
        ({"crops": [[2, 4]]}, "crops[0].size must be a whole number 8 .. 2048, got 4"),
        ({"crops": [[2, 64, [0, 1]]]}, "crops[0].scale must be two numbers (least, greatest)"),
        ({"crops": [[MAX_CROPS, 64], [1, 64]]}, "crops must be at most 32 a sample, got 33"),
        ({"crops": [[3, 2048]]}, "crops must have at most 8,388,608 pixels a sample, got 12,582,9"),
        ({"crops": CROPS, "image_size": 160}, "image_size 160 is that of no group of crops: leave"),
        ({"crops": CROPS, "scale": [0.2, 0.3], "ratio": [1, 1]}, "scale (0.2, 0.3) is that of no"),
        ({"crops": CROPS, "crop": "centre"}, "crops need crop random-resized, got centre"),
        ({"crops": CROPS, "image_size": {"0": 64, "3": 96}}, "by epoch do not go with crops"),
        ({"crops": CROPS, "image_size": {"0": 224}}, "by epoch do not go with crops"),
        ({"crops": CROPS, "image_size": {"0": 224, "3": 96}}, "by epoch do not go with crops"),
    ],
)
def test_what_is_wrong_is_one_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        train(**fields)
    text = str(caught.value)
    assert text.startswith("recipe: ")
    assert message in text
    assert "\n" not in text
    assert len(text) < 250


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"crops": CROPS}, "crops are for training, an evaluation has one crop a sample"),
        ({"image_size": {"0": 64, "9": 96}}, "by epoch are for training, an evaluation has one s"),
        ({"scale": {"0": [0.1, 1], "9": [0.5, 1]}}, "by epoch are for training"),
    ],
)
def test_an_evaluation_has_one_crop_and_one_size(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Recipe.for_split("val", batch_size=4, **fields)
    assert Recipe.for_split("val", batch_size=4, image_size={"0": 64}).image_size == 64


def test_no_crops_and_no_phases_are_a_plain_recipe() -> None:
    for empty in ([], ()):
        for split in ("train", "val"):
            plain = Recipe.for_split(split, batch_size=4)  # type: ignore[arg-type]
            recipe = Recipe.for_split(split, batch_size=4, crops=empty, phases=empty)  # type: ignore[arg-type]
            assert (recipe, recipe.fingerprint()) == (plain, plain.fingerprint())
            assert hash(recipe) == hash(plain)


def test_crops_may_be_augmented_harder_with_time() -> None:
    recipe = train(crops=CROPS, rand_augment_magnitude={"0": 5, "8": 9})
    assert [now.rand_augment_magnitude for now in recipe.over_epochs()] == [5, 9]
    assert {now.crops for now in recipe.over_epochs()} == {recipe.crops}
