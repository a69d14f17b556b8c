"""Bundles: what goes together, and what a receiver finds in them."""

from collections.abc import Sequence

import pytest

from bso_broker.bundles import MOST_PARTS, Bundle, Part, bundle_of, may_share, parts_of

PARTS = [("first", b'{"a": 1}'), ("second", b"two words"), ("first", b"again")]


def filled(parts: Sequence[Part]) -> list[list[Part]]:
    """Bundles that are begun where one is full."""
    bundles = [Bundle(parts[0])]
    for part in parts[1:]:
        if not bundles[-1].add(part):
            bundles.append(Bundle(part))
    return [bundle.parts for bundle in bundles]


def test_what_was_bundled_is_found_again_in_its_order() -> None:
    assert parts_of(bundle_of(PARTS)) == PARTS


def test_what_there_is_goes_together_in_its_order() -> None:
    assert filled(PARTS) == [PARTS]


def test_only_so_many_go_together() -> None:
    many = [(str(number), b"body") for number in range(2 * MOST_PARTS + 1)]
    groups = filled(many)
    assert [len(group) for group in groups] == [MOST_PARTS, MOST_PARTS, 1]
    assert [part for group in groups for part in group] == many
    assert all(parts_of(bundle_of(group)) == group for group in groups)


def test_only_so_much_goes_together() -> None:
    large = [("large", b"x" * 200_000), ("large", b"y" * 100_000), ("small", b"z")]
    assert filled(large) == [large[:1], large[1:]]


@pytest.mark.parametrize(
    "part",
    [
        ("large", b"x" * 300_000),
        ("lines", b"two\nlines"),
        ("empty", b""),
        ("", b"no id"),
        ("a space", b"x"),
        ("a\nline", b"x"),
        ("umlaut-\u00e4", b"x"),
        ("surrogate-\ud800", b"x"),
        ("x" * 256, b"x"),
    ],
    ids=lambda part: part[0][:10],
)
def test_what_a_receiver_could_not_read_goes_alone(part: Part) -> None:
    assert not may_share(part)


@pytest.mark.parametrize("part", [*PARTS, ("x" * 255, b"x"), ("anonymous.1", b"x" * 262_144)])
def test_what_is_usual_may_share(part: Part) -> None:
    assert may_share(part)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"id",
        b"id ",
        b" body",
        b"id body\n",
        b"id body\n\nid body",
        b"x" * 256 + b" body",
        b"\xff body",
        b"\x00 body",
    ],
)
def test_what_has_other_lines_is_no_bundle(body: bytes) -> None:
    with pytest.raises(ValueError, match="lines with an id, a space and a message"):
        parts_of(body)


@pytest.mark.parametrize("body", [b"\n".join([b"id body"] * (MOST_PARTS + 1)), b"\n" * 1_000_000])
def test_what_has_many_lines_is_no_bundle(body: bytes) -> None:
    with pytest.raises(ValueError, match="at most 32 messages in a bundle, got more"):
        parts_of(body)
