"""``bso monitor``: the power and energy of this machine, live, or of one command."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from bso.domain.quantities import seconds
from bso_cli.options import JsonOption
from bso_cli.terminal import onlookers, people, print_block, print_json

if TYPE_CHECKING:
    from bso_cli.monitoring.gauge import Gauge
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
    from bso_cli.monitoring.gauge import Gauge, open_gauge
    from bso_cli.monitoring.printed import explained
    from bso_client import NoMeter

    gauge = open_gauge(os.environ)
    if command:
        raise typer.Exit(_measure(command, gauge, as_json=as_json))
    if not isinstance(gauge, Gauge):
        raise NoMeter(explained(gauge.unreadable))
    _watch(gauge, interval_s=interval, count=count, as_json=as_json)


def _watch(gauge: Gauge, *, interval_s: float, count: int | None, as_json: bool) -> None:
    """Print readings, on a terminal each in the place of the one before, until Ctrl-C."""
    from rich.live import Live

    from bso_cli.monitoring import printed

    is_live = people().is_terminal and not as_json
    screen = Live(console=people(), auto_refresh=False) if is_live else contextlib.nullcontext()
    with gauge.monitor, contextlib.suppress(KeyboardInterrupt), screen as live:
        gauge.start()
        due = time.monotonic()
        for _ in itertools.count() if count is None else range(count):
            due += interval_s
            time.sleep(max(0.0, due - time.monotonic()))
            readings = gauge.look()
            shown = printed.shown(readings, f"after {seconds(readings.time_s)}")
            if as_json:
                print_json(printed.as_json(readings, at=datetime.now(UTC)))
            elif live is not None:
                live.update(shown, refresh=True)
            else:
                print_block(shown)


def _measure(command: Sequence[str], gauge: Gauge | Survey, *, as_json: bool) -> int:
    from bso_cli.monitoring import printed
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
    if as_json:
        print_json(printed.as_json(readings, at=datetime.now(UTC), exit_code=code))
    else:
        print_block(printed.summary(readings), on=onlookers())
    return code
