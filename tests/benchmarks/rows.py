"""Rows of build/bench.json: what was measured of one path under one load, each quantity with median, min and max."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tests.benchmarks.figures import Figures, percentile, spread_of
from tests.benchmarks.journeys import Driven

Row = dict[str, Any]
"""path, case (how it differs from the usual load), in_flight, workers; then what was measured."""

_Quantities = dict[str, tuple[str, Callable[[Driven], float]]]
_QUANTITIES: _Quantities = {
    "decisions": ("1/s", lambda one: one.rate),
    "latency, half": ("ms", lambda one: percentile(one.latencies_s, 0.5) * 1e3),
    "latency, 99 %": ("ms", lambda one: percentile(one.latencies_s, 0.99) * 1e3),
    "client CPU per decision": ("us", lambda one: one.cpu_us()),
}


def row_of(path: str, driven: Sequence[Driven], *, in_flight: int, workers: int, case: str = "") -> Row:
    """What windows of one path have in common.

    ``foreign``: one of them was disturbed by foreign processes, which took ``foreign_share`` of the machine.
    ``commands_per_batch`` and ``commands_per_commit`` are there where workers and database count.
    """
    processes = {"client": None, **{process: process for process in driven[0].elapsed.others_s}}
    row = {
        "path": path,
        "case": case,
        "in_flight": in_flight,
        "workers": workers,
        "per_second": spread([one.rate for one in driven]),
        "p50_ms": spread([percentile(one.latencies_s, 0.5) * 1e3 for one in driven]),
        "p99_ms": spread([percentile(one.latencies_s, 0.99) * 1e3 for one in driven]),
        "cpu_us": {key: spread([one.cpu_us(process) for one in driven]) for key, process in processes.items()},
        "foreign_share": spread([one.elapsed.foreign_share for one in driven]),
        "foreign": any(one.elapsed.is_disturbed for one in driven),
    }
    counted = {name: spread(values) for name, values in _sizes(driven).items()}
    return {**row, **counted}


def _sizes(driven: Sequence[Driven]) -> dict[str, list[float]]:
    """How many commands were decided together, as far as anybody has counted."""
    found = {
        "commands_per_batch": [one.commands_per_batch for one in driven],
        "commands_per_commit": [one.commands_per_commit for one in driven],
    }
    return {name: values for name, values in found.items() if any(values)}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, min and max. Raises ValueError without values."""
    found = spread_of(values)
    return {"median": found.middle, "min": found.least, "max": found.greatest}


def tell(
    figures: Figures, case: str, driven: Sequence[Driven], *, peer: str = "", peers: Sequence[Driven] = ()
) -> None:
    """Add what windows have met, beside what those of a peer in the same repetitions have."""
    cpu: _Quantities = {
        f"{process} CPU per decision": ("us", partial(Driven.cpu_us, name=process))
        for process in driven[0].elapsed.others_s
    }
    for quantity, (unit, value) in {**_QUANTITIES, **cpu}.items():
        has_peer = bool(peers) and (quantity not in cpu or quantity.split()[0] in peers[0].elapsed.others_s)
        others = list(map(value, peers)) if has_peer else ()
        figures.add(case, quantity, unit, list(map(value, driven)), peer=peer, peer_values=others)
    for name, values in _sizes(driven).items():
        figures.add(case, name.replace("_", " "), "", values)


def median(found: Mapping[str, float] | None) -> float | None:
    """Of a quantity of a row; None where the row has none."""
    return None if found is None else found["median"]
