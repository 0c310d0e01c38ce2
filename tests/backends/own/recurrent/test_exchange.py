"""Tests of the words that blocks exchange: their tags, and the rounding for a tag."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnffi.backends.own.recurrent.config import DTYPES
from dnnffi.device.dtypes import dtype_object
from simulators.cuda.emulator import functions

TAGS = {"float16": 0x10000, "bfloat16": 0x10000, "float32": 1}
SIXTEEN = ("float16", "bfloat16")

TEXT = """
constexpr bool OF_SHARES = Config::OF_SHARES;
extern "C" {
void tag_words(const uint4 *from, uint4 *to, long count, unsigned tag)
{
    for (long i = 0; i < count; i++)
        to[i] = tagged<OF_SHARES>(OF_SHARES ? from[i] : as_factors(from[i]), tag);
}
void untag_words(const uint4 *from, uint4 *to, long count)
{
    for (long i = 0; i < count; i++) to[i] = untagged<OF_SHARES>(from[i]);
}
void have_tag(const uint4 *from, bool *to, long count, unsigned tag)
{
    for (long i = 0; i < count; i++) to[i] = has_tag<OF_SHARES>(from[i], tag);
}
void lost_word(uint4 *to, unsigned tag) { *to = lost<OF_SHARES>(tag); }
unsigned tag_of(unsigned first, unsigned second, int exchange)
{
    return Tags{{first, second}}.of<OF_SHARES>(exchange);
}
}
"""


class Words:
    """The functions of `exchange_flags.cuh` for a dtype, on arrays [N, 4] of 32 bits.

    Words of partial sums (``share``) have float32 elements for every dtype.
    """

    def __init__(self, dtype, share=False):
        self.dtype = "float32" if share else dtype
        self.tag = TAGS[self.dtype]
        constants = {
            **dict.fromkeys(("DTYPE", "FACTORS"), DTYPES[dtype]),
            **{"STRICT": False, "LAYERS": 1, "SLOT_WORDS": 1, "OF_SHARES": share},
        }
        self._library = functions(constants, ("exchange_flags.cuh", "tiles.cuh"), TEXT)

    def call(self, name, words, *arguments, out=None):
        # C++ requires words of 16 bytes to be aligned.
        given = aligned(words)
        out = aligned(np.zeros_like(words)) if out is None else out
        getattr(self._library, name)(
            *map(ctypes.c_void_p, (given.ctypes.data, out.ctypes.data)),
            ctypes.c_long(len(words)),
            *map(ctypes.c_uint, arguments),
        )
        return np.array(out)

    def tagged(self, words, turned):
        return self.call("tag_words", words, self.tag * turned)

    def untagged(self, words):
        return self.call("untag_words", words)

    def has_tag(self, words, turned):
        return self.call("have_tag", words, self.tag * turned, out=np.zeros(len(words), bool))

    def lost(self, turned):
        out = aligned(np.zeros((1, 4), "u4"))
        self._library.lost_word(ctypes.c_void_p(out.ctypes.data), ctypes.c_uint(self.tag * turned))
        return np.array(out)

    def of(self, first, second, exchange):
        return self._library.tag_of(first, second, exchange) // self.tag


def aligned(values):
    raw = np.empty(values.nbytes + 16, np.uint8)
    first = -raw.ctypes.data % 16
    copy = raw[first : first + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


@pytest.fixture(scope="module", params=list(itertools.product(DTYPES, (False, True))), ids=str)
def words(request):
    return Words(*request.param)


@pytest.fixture(scope="module", params=SIXTEEN)
def halves(request):
    """The functions for a dtype of 16 bits, and words whose last elements are all its numbers."""
    random = np.random.default_rng(0)
    given = random.integers(0, 2**32, (2**16, 4), dtype="u4")
    given[:, 3] = given[:, 3] & 0xFFFF | np.arange(2**16, dtype="u4") << 16
    return Words(request.param), given


def last(words, dtype):
    """Return the last elements of words as float64."""
    return wide((words[:, 3] >> 16).astype("u2"), dtype)


def wide(bits, dtype):
    """Convert the bits of numbers of 16 bits to float64."""
    with np.errstate(invalid="ignore"):
        return bits.view(dtype_object(dtype)).astype("f8")


@pytest.mark.parametrize("turned", [0, 1])
def test_of_16_bits_only_the_last_element_changes(halves, turned):
    words, given = halves
    found = words.tagged(given, turned)
    np.testing.assert_array_equal(found[:, :3], given[:, :3])
    np.testing.assert_array_equal(found[:, 3] & 0xFFFF, given[:, 3] & 0xFFFF)
    assert (found[:, 3] >> 16 & 1 == turned).all()


def test_of_16_bits_the_last_element_is_rounded_half_to_even(halves):
    words, given = halves
    before = last(given, words.dtype)
    after = last(words.untagged(words.tagged(given, 0)), words.dtype)
    np.testing.assert_array_equal(np.isnan(after), np.isnan(before))
    infinite = np.isinf(before)
    np.testing.assert_array_equal(after[infinite], before[infinite])
    assert np.isfinite(after[np.isfinite(before)]).all()
    # All finite numbers in ascending order: those at odd indices are ties, others are unchanged.
    sizes = wide(np.arange(2**15, dtype="u2"), words.dtype)
    sizes = sizes[np.isfinite(sizes)]
    for number, size in enumerate(sizes):
        if number % 2 == 0:
            expected = size
        elif number + 1 == len(sizes):
            expected = sizes[number - 1]  # the largest is cut
        else:
            expected = sizes[number - 1 if (number - 1) % 4 == 0 else number + 1]
        assert after[number] == expected
        assert after[number + 2**15] == -expected


def test_what_is_read_does_not_depend_on_the_tag(halves):
    words, given = halves
    both = [words.untagged(words.tagged(given, turned)) for turned in (0, 1)]
    np.testing.assert_array_equal(*both)


def test_a_word_has_its_tag_and_not_the_other(halves):
    words, given = halves
    for turned in (0, 1):
        found = words.tagged(given, turned)
        assert words.has_tag(found, turned).all()
        assert not words.has_tag(found, 1 - turned).any()


@given(st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=4), st.integers(0, 1))
def test_of_float32_a_tag_is_where_products_do_not_read(bits, turned):
    words = Words("float32")
    given = np.array([bits], "u4")
    tagged = words.tagged(given, turned)
    assert words.has_tag(tagged, turned).all()
    assert not words.has_tag(tagged, 1 - turned).any()
    found = words.untagged(tagged)
    np.testing.assert_array_equal(found, words.untagged(words.tagged(given, 1 - turned)))
    before, after = given.view("f4").ravel(), found.view("f4").ravel()
    np.testing.assert_array_equal(np.isnan(after), np.isnan(before))
    with np.errstate(over="ignore"):  # TF32's 10 bits of mantissa
        expected = ((given.astype("u8") + 0x1000) & 0xFFFFE000).astype("u4").view("f4").ravel()
    there = ~np.isnan(before)
    np.testing.assert_array_equal(after[there], expected[there])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turned", [0, 1])
def test_of_a_share_only_the_last_bit_changes(dtype, turned):
    shares = Words(dtype, share=True)
    given = np.random.default_rng(0).integers(0, 2**32, (1000, 4), dtype="u4")
    tagged = shares.tagged(given, turned)
    assert shares.has_tag(tagged, turned).all()
    assert not shares.has_tag(tagged, 1 - turned).any()
    given[:, 3] &= 0xFFFFFFFE
    np.testing.assert_array_equal(shares.untagged(tagged), given)


@pytest.mark.parametrize("turned", [0, 1])
def test_a_lost_word_has_its_tag_and_ends_in_nan(words, turned):
    found = words.lost(turned)
    assert words.has_tag(found, turned).all()
    values = words.untagged(found).view(dtype_object(words.dtype)).astype("f4").ravel()
    assert np.isnan(values[-1])


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_a_tag_turns_with_every_word_that_is_written(launches):
    words = Words("float16")
    slots = [0, 0]
    for exchanges in launches:
        found = tuple(slots)
        for e in range(exchanges):
            tag = words.of(*found, e)
            assert tag == 1 - slots[e % 2]
            slots[e % 2] = tag


@given(
    st.integers(0, 2**31 - 1), st.integers(0, 1), st.integers(0, 1), st.sampled_from(list(DTYPES))
)
def test_the_tag_of_any_exchange(exchange, first, second, dtype):
    # The same formula as in test_protocol.py.
    before = (first, second)[exchange & 1]
    assert Words(dtype).of(first, second, exchange) == before ^ 1 ^ (exchange >> 1 & 1)
