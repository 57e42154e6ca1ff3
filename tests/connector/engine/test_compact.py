"""Texts in few bytes: lossless for any text, and half the length for what leases keep most of."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.compact import pack_texts, unpack_texts

UUID = "01938c5e-7a3b-7000-8000-0123456789ab"


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=70),
            st.uuids().map(str),
            st.binary(max_size=70).map(bytes.hex),
            st.uuids().map(lambda value: str(value).upper()),
        ),
        max_size=6,
    )
)
def test_every_text_comes_back_as_it_was(texts: list[str]) -> None:
    assert list(unpack_texts(pack_texts(texts))) == texts


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        (UUID, 17),
        ("ab" * 16, 17),
        ("ab" * 12, 13),
        ("abc", 4),
        ("", 1),
        ("AB" * 16, 33),
        ("ab" * 62, 63),
        ("ab" * 63, 68),
    ],
)
def test_ids_take_half_their_length(text: str, num_bytes: int) -> None:
    assert len(pack_texts([text])) == num_bytes


def test_the_first_texts_are_there_without_the_rest() -> None:
    packed = pack_texts([UUID, "x"])
    assert next(unpack_texts(packed[:17])) == UUID
