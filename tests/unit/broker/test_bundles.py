"""Bundles: what goes together, and what a receiver finds in them."""

from collections.abc import Sequence

import pytest

from bso_broker.bundles import MOST_PARTS, Part, bundle_of, parts_of, together

PARTS = [("first", b'{"a": 1}'), ("second", b"two words"), ("first", b"again")]


def grouped(parts: Sequence[Part]) -> list[list[Part]]:
    return [[part for _, part in group] for group in together((None, part) for part in parts)]


def test_what_was_bundled_is_found_again_in_its_order() -> None:
    assert parts_of(bundle_of(PARTS)) == PARTS


def test_what_there_is_goes_together_in_its_order() -> None:
    assert grouped(PARTS) == [PARTS]
    assert grouped([]) == []


def test_each_stays_with_what_it_was_made_of() -> None:
    (group,) = together((number, part) for number, part in enumerate(PARTS))
    assert list(group) == list(enumerate(PARTS))


def test_only_so_many_go_together() -> None:
    many = [(str(number), b"body") for number in range(2 * MOST_PARTS + 1)]
    groups = grouped(many)
    assert [len(group) for group in groups] == [MOST_PARTS, MOST_PARTS, 1]
    assert [part for group in groups for part in group] == many
    assert all(parts_of(bundle_of(group)) == group for group in groups)


def test_only_so_much_goes_together() -> None:
    large = [("large", b"x" * 200_000), ("large", b"y" * 100_000), ("small", b"z")]
    assert grouped(large) == [large[:1], large[1:]]


@pytest.mark.parametrize("size", [300_000, 5_000_000])
def test_what_is_larger_than_a_bundle_may_be_goes_alone(size: int) -> None:
    parts = [("a", b"x"), ("b", b"y" * size), ("c", b"z")]
    assert grouped(parts) == [[part] for part in parts]


def test_what_has_several_lines_goes_alone() -> None:
    parts = [("a", b"x"), ("b", b"two\nlines"), ("c", b"z"), ("d", b"z")]
    assert grouped(parts) == [parts[:1], parts[1:2], parts[2:]]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "lines with an id"),
        (b"id", "lines with an id"),
        (b"id ", "lines with an id"),
        (b" body", "lines with an id"),
        (b"id body\n", "lines with an id"),
        (b"id body\n\nid body", "lines with an id"),
        (b"x" * 256 + b" body", "lines with an id"),
        (b"\xff body", "utf-8"),
        (b"\n".join([b"id body"] * (MOST_PARTS + 1)), "at most 32 messages in a bundle, got more"),
        (b"\n" * 1_000_000, "at most 32 messages in a bundle, got more"),
    ],
)
def test_what_is_no_bundle_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parts_of(body)
