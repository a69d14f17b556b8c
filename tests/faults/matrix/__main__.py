"""``python -m tests.faults.matrix``: play scenarios, print what came of them, and write it all to a file."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults.matrix.pair import Pair, running_pair
from tests.faults.matrix.result import Result
from tests.faults.matrix.scenario import Scenario, all_scenarios, played
from tests.integration.workers.processes import MODULE


def main(arguments: Sequence[str] | None = None) -> int:
    """Play, print, write; 1: something was lost, doubled, contradicted or unexpected."""
    options = _parser().parse_args(arguments)
    if options.list:
        sys.stdout.write("".join(f"{one.name:28} {one.words}\n" for one in all_scenarios().values()))
        return 0
    sys.setswitchinterval(0.0005)  # proxies run in threads: what they delay must not wait for lanes as well
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    _say(f"seed {seed}: --seed {seed} repeats the order of what happens")
    chosen = _chosen(options)
    _begin(options.out, options.database, seed, keeps=options.add)
    if options.not_run:
        _add(
            options.out,
            [Result(scenario="all", seed=seed, broker="", database=options.database, not_run=options.not_run)],
        )
        _say(f"not run: {options.not_run}; {options.out}")
        return 1
    with running_pair(options.database) as pair:
        _say(f"{pair.broker_name}, {pair.database_name}")
        results = _played(chosen, pair, seed, options)
        again, lenient = options.again, options.lenient
        first = [result for result in results if is_played_again(result, again=again, lenient=lenient)]
        program = options.worker_program or MODULE
        for one in first:
            results += _play([all_scenarios()[one.scenario]], pair, seed + 1, program, options.out)
    _add(options.out, left_out(chosen, pair, seed))
    counted = [result for result in results if result not in first]
    failed = [result.scenario for result in counted if not result.is_sound]
    slow = [result.scenario for result in counted if result.broken_promises]
    not_run = [result.scenario for result in results if result.not_run]
    _say(
        f"{len(results) - len(not_run)} scenarios, {len(failed)} failed {failed or ''}, {len(slow)} slower than "
        f"promised {slow or ''}, {len(first)} played again {[one.scenario for one in first] or ''}, {len(not_run)} not "
        f"run {not_run or ''}; {options.out}"
    )
    return 1 if failed or (slow and not options.lenient) else 0


def is_played_again(result: Result, *, again: bool, lenient: bool) -> bool:
    """Whether a scenario is played once more, alone, which counts then: where only the machine may have been slow.

    A promise about time is broken if it is broken twice. Both results are in the file.
    """
    if result.is_sound:
        return bool(result.broken_promises) and not lenient
    return again and result.may_be_slowness


_PAIRS = ("mariadb", "postgresql", "given")


def _played(chosen: Sequence[Scenario], pair: Pair, seed: int, options: argparse.Namespace) -> list[Result]:
    """One group after the other; with a limit of time in an order by chance, and what is left is not run."""
    groups: dict[str, list[Scenario]] = {}
    for one in chosen:
        groups.setdefault(one.group or one.name, []).append(one)
    turns = list(groups.values())
    results: list[Result] = []
    if options.minutes is not None:
        random.Random(seed).shuffle(turns)
    ends_s = time.monotonic() + 60.0 * (options.minutes or float("inf"))
    for turn in turns:
        if time.monotonic() < ends_s:
            results += _play(turn, pair, seed, options.worker_program or MODULE, options.out)
            continue
        why = f"no time was left: --minutes {options.minutes:g}"
        broker, database = pair.broker_name, pair.database_name
        left = [Result(scenario=one.name, seed=seed, broker=broker, database=database, not_run=why) for one in turn]
        _add(options.out, left)
        results += left
    return results


def _play(turn: Sequence[Scenario], pair: Pair, seed: int, program: Sequence[str], out: Path) -> Sequence[Result]:
    """Play some scenarios at once; what came of them is printed, and added to the file."""

    async def play() -> Sequence[Result]:
        return await asyncio.gather(*(played(one, pair, seed, worker_program=program) for one in turn))

    results = asyncio.run(play())
    for result in results:
        _report(result)
    _add(out, results)
    return results


def _report(result: Result) -> None:
    if result.not_run:
        _say(f"{result.scenario:28} not run: {result.not_run}")
        return
    verdict = "ok" if result.is_sound else "FAILED"
    _say(
        f"{result.scenario:28} {verdict:6} {result.attempted} attempted, {result.acknowledged} acknowledged, "
        f"{result.lost} lost, {result.duplicated} doubled, {result.contradicted} contradicted, "
        f"{result.unreported} unreported; others stall {result.others_stall_s:.1f} s, slowest "
        f"{result.others_slowest_s:.1f} s; recovery {result.recovery_s:.1f} s, of the job "
        f"{result.recovery_of_harmed_s:.1f} s {result.figures or ''} ({sum(result.took_s.values()):.0f} s)"
    )
    for words in result.unexpected:
        _say(f"    unexpected: {words}")
    for words in result.broken_promises:
        _say(f"    slower than promised: {words}")


def _chosen(options: argparse.Namespace) -> list[Scenario]:
    named = options.scenario or ()
    if not named and not options.smoke:
        return list(all_scenarios().values())
    return [one for one in all_scenarios().values() if one.name in named or (options.smoke and one.is_smoke)]


def left_out(chosen: Sequence[Scenario], pair: Pair, seed: int) -> list[Result]:
    """One entry for all scenarios that the options leave out; none where they leave none out."""
    names = [name for name, one in all_scenarios().items() if one not in chosen]
    if not names:
        return []
    why = f"not chosen: {', '.join(names)}"
    return [Result(scenario="others", seed=seed, broker=pair.broker_name, database=pair.database_name, not_run=why)]


def _begin(path: Path, database: str, seed: int, *, keeps: bool) -> None:
    """A file that names the other pairs of servers as not run; one that is kept no longer names this pair so."""
    if keeps and path.exists():
        held = [one for one in json.loads(path.read_text()) if (one["scenario"], one["database"]) != ("all", database)]
        path.write_text(json.dumps(held, indent=1) + "\n")
        return
    path.unlink(missing_ok=True)
    why = "this run was for another pair of servers; `make faults` without ARGS plays on all of them"
    others = [one for one in _PAIRS if one != database]
    _add(path, [Result(scenario="all", seed=seed, broker="", database=one, not_run=why) for one in others])


def _add(path: Path, results: Sequence[Result]) -> None:
    """Write results behind those that the file holds: what was played is known, wherever a run ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(path.read_text()) if path.exists() else []
    path.write_text(json.dumps([*before, *(result.as_dict() for result in results)], indent=1) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.matrix",
        description="Let faults strike while many jobs go through several workers, and audit what came of it.",
        epilog="A seed fixes what is chosen at random; when processes reach which line, it cannot fix.",
    )
    parser.add_argument("--seed", type=int, help="what is chosen at random (default: a new one, which is printed)")
    parser.add_argument(
        "--scenario",
        action="append",
        choices=sorted(all_scenarios()),
        metavar="NAME",
        help="play this one, also beside --smoke; repeatable",
    )
    parser.add_argument("--smoke", action="store_true", help="play a few, in about 90 s")
    parser.add_argument("--minutes", type=float, help="begin no further scenario after so long; the order is by chance")
    parser.add_argument("--list", action="store_true", help="say which scenarios there are, and end")
    parser.add_argument(
        "--database",
        choices=_PAIRS,
        default="mariadb",
        help="private servers of this kind, or those that BSO_TEST_AMQP_URL and BSO_TEST_DATABASE_URL name",
    )
    parser.add_argument("--out", type=Path, default=Path("build/faults.json"), help="the file (build/faults.json)")
    parser.add_argument("--add", action="store_true", help="add to the file instead of replacing it")
    parser.add_argument(
        "--again",
        action="store_true",
        help="play once more what a slow machine may have failed, and fail where that fails, too",
    )
    parser.add_argument("--not-run", metavar="REASON", help="play nothing, and write why")
    parser.add_argument(
        "--lenient",
        action="store_true",
        help="on a busy machine: fail only where something is far slower than promised",
    )
    parser.add_argument(
        "--worker-program", nargs="+", metavar="ARG", help="what Python runs as a worker: a build that must fail"
    )
    return parser


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")


if __name__ == "__main__":
    sys.exit(main())
