"""``python -m tests.benchmarks``: run the benchmarks, all or some, and print what they find."""

import argparse
import importlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.benchmarks import machine, page
from tests.benchmarks.figures import Figure
from tests.benchmarks.laboratory import QUICK, THOROUGH, Laboratory
from tests.benchmarks.printing import json_of, table_of

BENCHMARKS = {
    "decide": "the rules alone, with a short and a long history",
    "simulator": "simulated trials, by policy",
    "policies": "regret by policy, on measured and on made problems: min and max are a 95 % interval",
    "engine": "one transaction per batch, against the bare driver and against fsync",
    "rpc": "a report through RabbitMQ, workers and MariaDB, beside Zeus' server, an echo, and a bare transaction",
    "loads": "one job, a job for each training, the other policy; two workers beside one at equal commits",
    "workers": "whole trials: one, two and four workers, both policies; then every job's log is audited",
    "client": "what a training pays for an evaluation, and for the import",
    "epochs": "what a training loop pays per epoch, against the same loop without the client",
    "growth": "decisions with 10, 1 000 and 100 000 ended trials behind them",
    "counts": "requests to the database and AMQP frames per decision",
    "lifecycle": "a worker's start-up, its drain under load, and its memory after up to 10^6 messages",
    "gateway": "a report over Zeus' wire: its own server, the gateway and a worker, the gateway over a SQLite file",
    "many": "two thousand trainings that hardly ever report, and a broker that restarts under them; not with --quick",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    options = _parser().parse_args(arguments)
    figures: list[Figure] = []
    effort = QUICK if options.quick else THOROUGH
    effort = replace(effort, repetitions=options.repetitions or effort.repetitions)
    with Laboratory(effort, say=_say) as laboratory:
        for name in options.only or [name for name in BENCHMARKS if name != "many" or not options.quick]:
            began_s = time.perf_counter()
            _say(f"{name}: {BENCHMARKS[name]}")
            found = importlib.import_module(f"tests.benchmarks.{name}").measure(laboratory)
            _say(f"{name}: measured in {time.perf_counter() - began_s:.0f} s")
            figures += found
            if not options.json:
                sys.stdout.write(f"\n{name}: {BENCHMARKS[name]}\n\n{table_of(found)}\n\n")
                sys.stdout.flush()
        rows = laboratory.rows
    about = machine.description()
    if rows:
        about_run = {"command": " ".join(["python -m tests.benchmarks", *(arguments or sys.argv[1:])])}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"machine": about | about_run, "rows": rows}, indent=2) + "\n")
        _say(f"wrote {options.out} and {page.write(about | about_run, rows, options.out.parent / 'performance')}")
    if options.json:
        sys.stdout.write(json_of(figures, about) + "\n")
    else:
        sys.stdout.write("".join(f"{key}: {value}\n" for key, value in about.items()))
    return 0


def _parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:9} {words}" for name, words in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description="Measure what decisions cost. Private servers are started and removed.\n\n" + listed,
        epilog=(
            "A figure is the median of several repetitions. 'ratio' divides it by what stands behind 'to', measured\n"
            "in the same repetitions. Ratios, and CPU time per decision, hold on other machines; rates do not."
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", choices=BENCHMARKS, metavar="NAME", help="run this one; repeatable")
    parser.add_argument(
        "--out", type=Path, default=Path("build/bench.json"), help="where the rows go (build/bench.json)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with every single value")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work: shows that they run, not how fast")
    parser.add_argument(
        "--repetitions",
        type=_at_least_one,
        metavar="N",
        help=f"how often each is measured ({THOROUGH.repetitions}, with --quick {QUICK.repetitions})",
    )
    return parser


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {text}")
    return number


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")


if __name__ == "__main__":
    sys.exit(main())
