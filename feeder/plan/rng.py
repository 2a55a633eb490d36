"""Random numbers without state: every draw is a pure function of its key and its counter.

There is no state, so the process, the order and the number of draws cannot matter.

``mix64`` is the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
generators, OOPSLA 2014, with the constants of Stafford's variant 13). ``mix64(seed + j * GAMMA)``
for j = 1, 2, … is SplitMix64's j-th output, so every stream below is a SplitMix64 sequence
whose seed is itself mixed from (seed, epoch, stream, sample id).

Invariant: only uint64 arithmetic modulo 2**64 and one exact conversion to float64 are used, so
the values are the same on every machine and with every numpy. Published values are in the tests.
"""

import enum
from typing import Final

import numpy as np
from numpy.typing import NDArray

GAMMA: Final = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, odd: SplitMix64's increment
_MULTIPLIER_1: Final = 0xBF58476D1CE4E5B9
_MULTIPLIER_2: Final = 0x94D049BB133111EB
_MASK: Final = 2**64 - 1

# Array operands of numpy 1.26 need typed scalars: uint64 with a Python int may become float64.
GAMMA_U64: Final = np.uint64(GAMMA)
MULTIPLIER_1_U64: Final = np.uint64(_MULTIPLIER_1)
MULTIPLIER_2_U64: Final = np.uint64(_MULTIPLIER_2)
_SHIFT_30: Final = np.uint64(30)
_SHIFT_27: Final = np.uint64(27)
_SHIFT_31: Final = np.uint64(31)
_SHIFT_11: Final = np.uint64(11)
_UNIT: Final = 2.0**-53


class Purpose(enum.IntEnum):
    """The use of a key; keys for different purposes never share random numbers."""

    LANE_ORDER = 1
    TURN_ORDER = 2
    LEFTOVER_ORDER = 3
    SAMPLE = 4
    MIXING = 5
    CROP = 6
    DRAWS = 7


class Stream(enum.IntEnum):
    """The independent random streams of one sample; a new augmentation takes a new number."""

    CROP = 1
    FLIP = 2
    RAND_AUGMENT = 3
    TRIVIAL_AUGMENT = 4
    JITTER = 5
    GREYSCALE = 6
    ERASING = 7
    ERASING_NOISE = 8
    VERTICAL_FLIP = 9
    AUTO_AUGMENT = 10
    AUGMIX = 11
    BLUR = 12
    SOLARISE = 13


def derive_key(purpose: Purpose, *words: int) -> int:
    """Return the 64-bit key of ``purpose`` and ``words`` (each in 0 .. 2**64 - 1).

    For fixed other words it is a bijection of each word, so neighbouring seeds never collide.
    """
    key = _mix64_int(int(purpose) + GAMMA)
    for word in words:
        key = _mix64_int(key + (int(word) + 1) * GAMMA)
    return key


def derive_keys(key: int, words: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a 64-bit key for each of ``words``: ``derive_key`` with one more word, vectorised."""
    keys = words.astype(np.uint64)
    keys += np.uint64(1)
    keys *= GAMMA_U64
    keys += np.uint64(key)
    return mix64(keys)


def mix64(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply a bijection of 64 bits to each word in place, and return the same array."""
    words ^= words >> _SHIFT_30
    words *= MULTIPLIER_1_U64
    words ^= words >> _SHIFT_27
    words *= MULTIPLIER_2_U64
    words ^= words >> _SHIFT_31
    return words


def uniforms(
    seed: int, epoch: int, sample_ids: NDArray[np.int64], stream: Stream, count: int
) -> NDArray[np.float64]:
    """Return ``count`` uniform draws for each sample, float64 (n, count) in [0, 1).

    The values are multiples of 2**-53. A row depends on (seed, epoch, sample id, stream) only, and
    its first k values are the same for every ``count`` >= k.
    """
    starts = derive_keys(derive_key(Purpose.SAMPLE, seed, epoch, stream), sample_ids)
    counters = np.arange(1, count + 1, dtype=np.uint64)
    counters *= GAMMA_U64
    bits = mix64(starts[:, np.newaxis] + counters)
    bits >>= _SHIFT_11
    draws: NDArray[np.float64] = bits.astype(np.float64)  # exact: 53 bits
    draws *= _UNIT
    return draws


def random_bytes(
    seed: int, epoch: int, sample_id: int, stream: Stream, count: int
) -> NDArray[np.uint8]:
    """Return ``count`` uniform bytes for one sample: the words of its stream, low byte first."""
    words = np.arange(1, -(-count // 8) + 1, dtype=np.uint64)
    words *= GAMMA_U64
    words += derive_keys(
        derive_key(Purpose.SAMPLE, seed, epoch, stream), np.array([sample_id], np.int64)
    )
    return mix64(words).astype("<u8", copy=False).view(np.uint8)[:count]


def crop_words(sample_ids: NDArray[np.int64], crop: int) -> NDArray[np.int64]:
    """Return what a crop of each sample draws by in place of its id; the id itself for crop 0.

    It is an id of another sample only by chance, at 2**-64 for a pair.
    """
    if not crop:
        return sample_ids
    return derive_keys(derive_key(Purpose.CROP, crop), sample_ids).view(np.int64)


def uniform_integers(
    draws: NDArray[np.float64], limits: NDArray[np.float64] | float
) -> NDArray[np.float64]:
    """Turn ``draws`` in [0, 1) into whole float64 numbers 0 .. limits - 1 (1 <= limits < 2**53).

    The result is floor(u * m) with 53 random bits, so no value's probability is off by more than
    2**-53. Since u is at most 1 - 2**-53, the rounded product stays below m.
    """
    return np.floor(draws * limits)


def _mix64_int(word: int) -> int:
    """``mix64`` of one Python integer, taken modulo 2**64 first."""
    word &= _MASK
    word = (word ^ (word >> 30)) * _MULTIPLIER_1 & _MASK
    word = (word ^ (word >> 27)) * _MULTIPLIER_2 & _MASK
    return word ^ (word >> 31)
