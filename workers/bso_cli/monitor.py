"""``bso monitor``: the power and energy of this machine, live, or of one command."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from bso.domain.quantities import seconds
from bso_cli.options import JsonOption
from bso_cli.terminal import onlookers, people, print_block, print_json

if TYPE_CHECKING:
    from bso_cli.monitoring.gauge import Gauge, Readings
    from bso_cli.tables import Table
    from bso_client.energy.meters import Survey

_STANDARD_ERROR = 2


def monitor(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND...]", help="Measure this command.", show_default=False),
    ] = None,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.1, metavar="SECONDS", help="The time between two readings.")
    ] = 1.0,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, metavar="N", help="Stop after N readings.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the power and energy of this machine's GPUs, processors and memory, or measure a command.

    **Live**, until Ctrl-C: power is the mean since the last reading, energy is counted from the start. With --json,
    one line per reading. Exits with 1 where no meter is readable, and says why.

    **A command** is run to its end as if it had been typed here: its time, and the energy of each device meanwhile,
    are printed on standard error (with --json on standard output, to which the command then does not write). Whatever
    else runs on the devices is measured, too. The command's exit code is passed through, 128 + n after signal n, and
    signals are passed on. Without a meter it runs all the same, and its energy is printed as unknown.

    GPUs are those that CUDA_VISIBLE_DEVICES shows. Processors are read from Linux' powercap folder (RAPL), or from the
    one that BSO_POWERCAP_DIR names.

    **Examples**

    What does this machine draw? `bso monitor`

    What does an epoch cost? `bso monitor -- python train.py --epochs 1`

    A log for later: `bso monitor --json --interval 10 > power.jsonl`
    """
    from bso_cli.monitoring.gauge import open_gauge

    gauge = open_gauge(os.environ)
    if command:
        raise typer.Exit(_measure(command, gauge, as_json=as_json))
    _watch(_readable(gauge), interval_s=interval, count=count, as_json=as_json)


def _readable(gauge: Gauge | Survey) -> Gauge:
    from bso_cli.monitoring.gauge import Gauge
    from bso_cli.monitoring.printed import explained
    from bso_client import NoMeter

    if isinstance(gauge, Gauge):
        return gauge
    raise NoMeter(explained(gauge.unreadable))


def _watch(gauge: Gauge, *, interval_s: float, count: int | None, as_json: bool) -> None:
    with gauge.monitor, contextlib.suppress(KeyboardInterrupt):
        if as_json:
            _look_again_and_again(gauge, _print_line, interval_s=interval_s, count=count)
        elif people().is_terminal:
            _live(gauge, interval_s=interval_s, count=count)
        else:
            _look_again_and_again(gauge, _print_table, interval_s=interval_s, count=count)


def _look_again_and_again(
    gauge: Gauge, show: Callable[[Readings], None], *, interval_s: float, count: int | None
) -> None:
    gauge.start()
    due = time.monotonic()
    for _ in itertools.count() if count is None else range(count):
        due += interval_s
        time.sleep(max(0.0, due - time.monotonic()))
        show(gauge.look())


def _live(gauge: Gauge, *, interval_s: float, count: int | None) -> None:
    from rich.live import Live

    with Live(console=people(), auto_refresh=False) as live:

        def show(readings: Readings) -> None:
            live.update(_table(readings), refresh=True)

        _look_again_and_again(gauge, show, interval_s=interval_s, count=count)


def _print_table(readings: Readings) -> None:
    print_block(_table(readings))


def _table(readings: Readings) -> Table:
    from bso_cli.monitoring.printed import shown

    return shown(readings, f"after {seconds(readings.time_s)}")


def _print_line(readings: Readings) -> None:
    from bso_cli.monitoring.printed import as_json

    print_json(as_json(readings, at=datetime.now(UTC)))


def _measure(command: Sequence[str], gauge: Gauge | Survey, *, as_json: bool) -> int:
    from bso_cli.monitoring.gauge import Gauge, Readings
    from bso_cli.programs import Program

    if isinstance(gauge, Gauge):
        gauge.start()
    began_at = time.monotonic()
    with Program(command, stdout=_STANDARD_ERROR if as_json else None) as program:
        code = program.wait() or 0
    if isinstance(gauge, Gauge):
        readings = gauge.look()
        gauge.monitor.close()
    else:
        readings = Readings(time_s=time.monotonic() - began_at, unreadable=gauge.unreadable)
    _report(readings, code, as_json=as_json)
    return code


def _report(readings: Readings, code: int, *, as_json: bool) -> None:
    from bso_cli.monitoring import printed

    if as_json:
        print_json(printed.as_json(readings, at=datetime.now(UTC), exit_code=code))
    else:
        print_block(printed.summary(readings), on=onlookers())
