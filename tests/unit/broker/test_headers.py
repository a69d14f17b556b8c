"""Which headers of a sender go with its command where bso sends it on."""

from bso_broker.dead_letters import own_headers


def test_headers_that_do_not_fit_beside_those_of_bso_are_left_out() -> None:
    sent = own_headers({"small": "kept", "large": "x" * 130_000, "last": "kept"})
    assert sent == {"small": "kept", "last": "kept"}


def test_many_small_headers_together_are_no_larger() -> None:
    sent = own_headers({f"header-{number}": "x" * 100 for number in range(2000)})
    assert 0 < sum(len(str(value)) for value in sent.values()) < 64 * 1024


def test_headers_that_can_be_read_and_not_sent_become_words() -> None:
    nested: object = "deep"
    for _ in range(5000):
        nested = {"deeper": nested}
    sent = own_headers({"bytes": b"\xff", "nested": nested, "x-death": "the broker's"})
    assert set(sent) == {"bytes", "nested"}
    assert isinstance(sent["nested"], str)
