"""Sizes with units: read, shown, and read again to the same."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.daemon.config import format_effective, load_config
from feeder.daemon.config_keys import format_size, parse_size
from feeder.errors import ConfigError

SIZES = st.integers(0, 1 << 46) | st.builds(
    lambda count, factor: count * factor,
    st.integers(0, 5000),
    st.sampled_from([10**3, 10**6, 10**8, 10**9, 1 << 10, 1 << 20, 1 << 30]),
)
CONFIGURABLE = st.integers(1 << 20, 1 << 44) | st.integers(1, 16_000).map(lambda n: n << 20)


@given(SIZES)
def test_a_shown_size_is_read_as_the_same(size_bytes: int) -> None:
    text = format_size(size_bytes)
    assert (parse_size(text) if isinstance(text, str) else text) == size_bytes


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("4 GiB", 4 << 30),
        ("4GiB", 4 << 30),
        ("512 mib", 512 << 20),
        ("1.5 GB", 1_500_000_000),
        ("1.1 GiB", 1_181_116_006),
        ("2 TB", 2 * 10**12),
        ("7 kB", 7000),
        ("7 B", 7),
        ("4", 4),
    ],
)
def test_a_size_is_a_number_and_a_unit(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "4 G", "4 GiBs", "-4 GiB", "4  GiB", "1e9 B", "4,5 GB", "GiB", ". GB", "٤ GB"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (4 << 30, "4 GiB"),
        (3 << 29, "1.5 GiB"),
        (1_500_000_000, "1.5 GB"),
        (1_048_577, 1_048_577),
        (0, 0),
    ],
)
def test_a_size_is_shown_in_the_largest_exact_unit(size_bytes: int, text: str | int) -> None:
    assert format_size(size_bytes) == text


@given(CONFIGURABLE)
def test_the_shown_configuration_loads_to_the_same_sizes(size_bytes: int) -> None:
    keys = ("serve.slots_bytes", "serve.client_slots_bytes", "cache.decoded_bytes")
    config = load_config(None, dict.fromkeys(keys, f"{size_bytes} B"))
    shown = tomllib.loads(format_effective(config))
    again = load_config(
        None, {key: shown[key.partition(".")[0]][key.partition(".")[2]] for key in keys}
    )
    assert (again.serve, again.cache) == (config.serve, config.cache)
    assert config.serve.slots_bytes == config.cache.decoded_bytes == size_bytes


def test_sizes_of_a_file_have_units_or_are_whole_numbers(tmp_path: Path) -> None:
    file = tmp_path / "feeder.toml"
    file.write_text('[serve]\nslots_bytes = "4 GiB"\n[cache]\ndecoded_bytes = 2000000')
    config = load_config(file, {"serve.client_slots_bytes": "512MiB"})
    assert (config.serve.slots_bytes, config.cache.decoded_bytes) == (4 << 30, 2_000_000)
    assert config.serve.client_slots_bytes == 512 << 20


@pytest.mark.parametrize("value", ['"4 GX"', '"1 KiB"', "1.5", "true"])
def test_a_wrong_size_is_one_line_with_the_allowed_form(value: str, tmp_path: Path) -> None:
    file = tmp_path / "feeder.toml"
    file.write_text(f"[serve]\nslots_bytes = {value}")
    with pytest.raises(ConfigError) as caught:
        load_config(file, {})
    assert str(caught.value) == (
        f"{file}: serve.slots_bytes is {value}: allowed is a size 1 MiB .. 16 TiB such as "
        '"4 GiB", "1.5 GB" or 1048576 (bytes), or "auto"'
    )
