"""Scenarios: what strikes, what is promised meanwhile, and how one is played."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

from tests.faults.matrix.auditing import Audit, audited
from tests.faults.matrix.pair import Pair
from tests.faults.matrix.stage import Stage, new_stage
from tests.integration.workers.processes import MODULE

Play = Callable[[Stage], Awaitable[None]]

_LONGEST_S = 420.0
_MORE = 200  # answers after everything has recovered


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One fault. ``promises`` are figures [s] with what they reach at most; a miss is reported beside the counts.

    ``needs_private``: it breaks servers, which may not be given ones; ``variant`` makes servers of its own from them;
    ``databases`` are those that it is about.
    """

    name: str
    words: str
    play: Play
    promises: Mapping[str, float] = field(default_factory=dict)
    needs_private: bool = False
    variant: Callable[[Pair], AbstractContextManager[Pair]] = nullcontext
    databases: Sequence[str] = ("MariaDB", "PostgreSQL", "MySQL")
    is_smoke: bool = False
    dead_letters: int = 0
    forgets_events: bool = False


SCENARIOS: dict[str, Scenario] = {}


def all_scenarios() -> Mapping[str, Scenario]:
    """Every scenario by its name, in the order in which they are played."""
    for room in ("of_workers", "of_jobs", "of_databases", "of_brokers", "of_clients", "mixed"):
        importlib.import_module(f"tests.faults.matrix.{room}")
    return SCENARIOS


def scenario(words: str, **options: Any) -> Callable[[Play], Play]:
    """Register a function as the scenario of its name."""

    def register(play: Play) -> Play:
        SCENARIOS[play.__name__] = Scenario(name=play.__name__, words=words, play=play, **options)
        return play

    return register


@dataclass(kw_only=True)
class Result:
    """What came of a scenario; times in s. ``not_run`` says why it was left out."""

    scenario: str
    seed: int
    broker: str
    database: str
    not_run: str | None = None
    attempted: int = 0
    acknowledged: int = 0
    applied: int = 0
    lost: int = 0
    duplicated: int = 0
    contradicted: int = 0
    unreported: int = 0
    unexpected: list[str] = field(default_factory=list)
    others_stall_s: float = 0.0
    others_slowest_s: float = 0.0
    recovery_s: float = 0.0
    recovery_of_harmed_s: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)
    promises: dict[str, float] = field(default_factory=dict)
    broken_promises: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether nothing was lost, doubled or contradicted, and nothing unexpected happened."""
        return not (self.lost or self.duplicated or self.contradicted or self.unexpected)

    def as_dict(self) -> dict[str, Any]:
        """As it stands in the file."""
        return dataclasses.asdict(self)


async def played(scenario: Scenario, pair: Pair, seed: int, *, worker_program: Sequence[str] = MODULE) -> Result:
    """Play a scenario and audit what came of it; what goes wrong on the way is a finding."""
    result = Result(scenario=scenario.name, seed=seed, broker=pair.broker_name, database=pair.database_name)
    result.not_run = why_not(scenario, pair)
    if result.not_run is not None:
        return result
    try:
        async with asyncio.timeout(_LONGEST_S), AsyncExitStack() as cleaning:
            own = await asyncio.to_thread(cleaning.enter_context, scenario.variant(pair))
            stage = await cleaning.enter_async_context(new_stage(own, seed, worker_program=worker_program))
            await scenario.play(stage)
            await stage.all_go_on()
            await stage.progress(_MORE)
            await stage.end()
            _measure(stage, scenario, result)
            audit = await audited(stage, dead_letters=scenario.dead_letters, forgets_events=scenario.forgets_events)
        _take(audit, result)
    except Exception:  # noqa: BLE001  a finding like any other
        result.unexpected.append(traceback.format_exc()[-2000:])
    return result


def why_not(scenario: Scenario, pair: Pair) -> str | None:
    """Why a scenario cannot be played on this pair; None: it can."""
    if scenario.needs_private and not pair.is_breakable:
        return "it breaks a server, and this pair was given"
    if pair.database_name not in scenario.databases:
        return f"it is about {' and '.join(scenario.databases)}"
    return None


def _take(audit: Audit, result: Result) -> None:
    for one in dataclasses.fields(audit):
        setattr(result, one.name, getattr(audit, one.name))


def _measure(stage: Stage, scenario: Scenario, result: Result) -> None:
    since_s, until_s = stage.struck_s, stage.recovered_s
    figures = {
        "others_stall_s": stage.ledger.others_stall_s(since_s=since_s, until_s=until_s),
        "others_slowest_s": stage.ledger.slowest_s(since_s=since_s, is_others=True),
        "recovery_s": stage.recovered_s - stage.mended_s,
        "recovery_of_harmed_s": stage.harmed_recovered_s - stage.mended_s,
        **stage.figures,
    }
    for name, seconds in figures.items():
        if hasattr(result, name):
            setattr(result, name, round(seconds, 3))
        else:
            result.figures[name] = round(seconds, 3)
    result.promises = dict(scenario.promises)
    result.broken_promises = [
        f"{name}: {figures[name]:.3g}, promised at most {most:g}"
        for name, most in scenario.promises.items()
        if figures[name] > most
    ]
