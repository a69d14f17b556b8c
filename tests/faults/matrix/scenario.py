"""Scenarios: what strikes, what is promised meanwhile, and how one is played."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

from tests.faults.matrix.auditing import audit
from tests.faults.matrix.pair import Pair
from tests.faults.matrix.result import DID_NOT_STRIKE, FAR_ABOVE, Result
from tests.faults.matrix.stage import Stage, new_stage
from tests.integration.workers.processes import MODULE

Play = Callable[[Stage], Awaitable[None]]

_LONGEST_S = 540.0
_MORE = 200  # answers after everything has recovered
RECOVERED_S = 12.0
"""What every scenario promises about ``recovery_s``, unless it promises something else."""
_UNPARKED_S = 75.0  # the longest pause of a job in trouble is 60 s
SENT_AGAIN_S = 25.0
"""What a scenario promises about ``others_slowest_s`` that destroys commands: who waits sends them again after 10 s."""
UNTOUCHED = {"others_stall_s": 3.0, "others_slowest_s": 4.0}
"""What a scenario promises that strikes one job, one training or one of several workers."""


def promised(scenario: Scenario, *, lasted_s: float) -> Mapping[str, float]:
    """All figures that a scenario promises, of a fault that lasted so long [s]: others wait no longer than it does."""
    over_s = lasted_s + RECOVERED_S
    usual = {"others_stall_s": over_s, "others_slowest_s": over_s, "recovery_s": RECOVERED_S}
    return {**usual, "recovery_of_harmed_s": _UNPARKED_S, **scenario.promises}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One fault. ``promises`` are figures [s] with what they reach at most; a miss is reported beside the counts, and
    unexpected where it is a miss by far.

    ``needs_private``: it breaks servers, which may not be given ones; ``needs_module`` has to be installed; ``variant``
    makes servers of its own from them; ``databases`` are those that it is about. ``strikes_for_s``: some command has to
    wait for its answer for so long at least [s]; else the fault has not struck. Those that mostly wait are played at
    once with others of the same ``group``.
    """

    name: str
    words: str
    play: Play
    promises: Mapping[str, float] = field(default_factory=dict)
    needs_private: bool = False
    variant: Callable[[Pair], AbstractContextManager[Pair]] = nullcontext
    databases: Sequence[str] = ("MariaDB", "PostgreSQL", "MySQL")
    is_smoke: bool = False
    strikes_for_s: float = 0.0
    forgets_events: bool = False
    group: str = ""
    stage: type[Stage] = Stage
    needs_module: str = ""


SCENARIOS: dict[str, Scenario] = {}


def all_scenarios() -> Mapping[str, Scenario]:
    """Every scenario by its name, in the order in which they are played."""
    for room in ("of_workers", "of_jobs", "of_databases", "of_brokers", "of_clients", "of_files", "of_ranks", "mixed"):
        importlib.import_module(f"tests.faults.matrix.{room}")
    return SCENARIOS


def scenario(words: str, **options: Any) -> Callable[[Play], Play]:
    """Register a function as the scenario of its name."""

    def register(play: Play) -> Play:
        SCENARIOS[play.__name__] = Scenario(name=play.__name__, words=words, play=play, **options)
        return play

    return register


async def played(scenario: Scenario, pair: Pair, seed: int, *, worker_program: Sequence[str] = MODULE) -> Result:
    """Play a scenario and audit what came of it; what goes wrong on the way is a finding."""
    result = Result(scenario=scenario.name, seed=seed, broker=pair.broker_name, database=pair.database_name)
    result.not_run = why_not(scenario, pair)
    if result.not_run is not None:
        return result
    lap = _Laps(result)
    try:
        async with asyncio.timeout(_LONGEST_S), AsyncExitStack() as cleaning:
            own = await asyncio.to_thread(cleaning.enter_context, scenario.variant(pair))
            stage = await cleaning.enter_async_context(
                new_stage(own, seed, kind=scenario.stage, worker_program=worker_program)
            )
            lap("prepare")
            try:
                await _play(scenario, stage, lap)
                result.database_version = await stage.database_version()
                _measure(stage, scenario, result)
            except Exception:  # noqa: BLE001  a finding, and what was lost until then is one, too
                result.unexpected.append(traceback.format_exc()[-2000:])
                await stage.end()
            await audit(stage, result)
            lap("audit")
    except Exception:  # noqa: BLE001  a finding like any other
        result.unexpected.append(traceback.format_exc()[-2000:])
    lap("clean")
    return result


async def _play(scenario: Scenario, stage: Stage, lap: _Laps) -> None:
    await scenario.play(stage)
    lap("play")
    await stage.all_go_on()
    if scenario.forgets_events:
        stage.events_forgotten_until = await stage.highest_event_id()
    await stage.progress(_MORE)
    await stage.all_answered()
    lap("recover")
    await stage.end()
    lap("end")


class _Laps:
    """A stopwatch: each call notes under a name what has passed since the one before [s]."""

    def __init__(self, result: Result) -> None:
        self._result = result
        self._since_s = time.monotonic()

    def __call__(self, name: str) -> None:
        now_s = time.monotonic()
        self._result.took_s[name] = round(now_s - self._since_s, 1)
        self._since_s = now_s


def why_not(scenario: Scenario, pair: Pair) -> str | None:
    """Why a scenario cannot be played on this pair; None: it can."""
    if scenario.needs_module and importlib.util.find_spec(scenario.needs_module) is None:
        return f"{scenario.needs_module} is not installed"
    if scenario.needs_private and not pair.is_breakable:
        return "it breaks a server, and this pair was given"
    if pair.database_name not in scenario.databases:
        return f"it is about {' and '.join(scenario.databases)}"
    return None


def _measure(stage: Stage, scenario: Scenario, result: Result) -> None:
    since_s, until_s = stage.struck_s, stage.recovered_s
    figures = {
        "others_stall_s": stage.ledger.others_stall_s(since_s=since_s, until_s=until_s),
        "others_slowest_s": stage.ledger.slowest_s(since_s=since_s, until_s=stage.over_s, is_others=True),
        "recovery_s": stage.recovered_s - stage.mended_s,
        "recovery_of_harmed_s": stage.harmed_recovered_s - stage.mended_s,
        **stage.figures,
    }
    for name, seconds in figures.items():
        if hasattr(result, name):
            setattr(result, name, round(seconds, 3))
        else:
            result.figures[name] = round(seconds, 3)
    longest_s = max(
        stage.ledger.longest_silence_s(since_s=since_s),
        *(
            stage.ledger.slowest_s(since_s=since_s, until_s=stage.over_s, is_others=is_others)
            for is_others in (True, False)
        ),
    )
    if longest_s < scenario.strikes_for_s:
        words = f"no command or job waited for longer than {longest_s:.1f} s, expected {scenario.strikes_for_s:g} s"
        result.unexpected.append(f"{DID_NOT_STRIKE}: {words}")
    result.promises = dict(promised(scenario, lasted_s=stage.mended_s - stage.struck_s))
    judge(result, figures)


def judge(result: Result, figures: Mapping[str, float]) -> None:
    """Hold figures against what is promised. Five times as much, and 5 more, no busy machine explains."""
    for name, most in result.promises.items():
        words = f"{name}: {figures[name]:.3g}, promised at most {most:g}"
        if figures[name] > max(5.0 * most, most + 5.0):
            result.unexpected.append(f"{FAR_ABOVE}: {words}")
        elif figures[name] > most:
            result.broken_promises.append(words)
