"""``bso report``: what was saved, by job, team or month."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from bso.domain.errors import Misconfigured
from bso.domain.ledger import EARLIER
from bso.domain.quantities import NOTHING, counted, listed, percent
from bso.domain.savings import SavedInMonth, Tariff, TotalSaved, total_saved
from bso.domain.savings_in_words import co2_in_words, energy_in_words, money_in_words, time_in_words
from bso_cli.access import NothingThere, savings_seen
from bso_cli.moments import month_from
from bso_cli.options import DatabaseOption, OutputOption, UrlOption, here, with_options
from bso_cli.tables import table_of
from bso_cli.terminal import print_block, print_json, print_notice, print_result

_OPTIONAL = ("GPU time", "assumed energy", "trials", "CO2", "time")
_RIGHT = ("models", "trials", "energy", "share", "assumed energy", "time", "GPU time", "money", "CO2", "unknown")

Found = tuple[str, SavedInMonth]
"""A job_id, and what the job saved in a month."""


class By(Enum):
    """What a row of the report is of."""

    JOB = "job"
    TEAM = "team"
    MONTH = "month"


class Form(Enum):
    """How the report is written."""

    TABLE = "table"
    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """The options of ``bso report``."""

    by: Annotated[
        By, typer.Option("--by", help="A row for each job, month, or team: what comes before the first hyphen.")
    ] = By.JOB
    jobs: Annotated[str, typer.Option("--jobs", metavar="PATTERN", help="Only jobs whose names fit: 'vision-*'.")] = "*"
    since: Annotated[
        str | None, typer.Option(metavar="MONTH", help="From this month on: 2026-01.", show_default=False)
    ] = None
    until: Annotated[
        str | None, typer.Option(metavar="MONTH", help="Up to the end of this month: 2026-12.", show_default=False)
    ] = None
    form: Annotated[Form, typer.Option("--format", help="How to write it.")] = Form.TABLE
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False
    output: OutputOption = None
    price_per_kwh: Annotated[
        float | None,
        typer.Option(metavar="PRICE", help="Of electricity. [BSO_PRICE_PER_KWH, else no money]", show_default=False),
    ] = None
    price_per_gpu_hour: Annotated[
        float | None,
        typer.Option(metavar="PRICE", help="Of a GPU. [BSO_PRICE_PER_GPU_HOUR, else none]", show_default=False),
    ] = None
    currency: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of the prices. [BSO_CURRENCY, else EUR]", show_default=False)
    ] = None
    co2_g_per_kwh: Annotated[
        float | None,
        typer.Option(
            metavar="GRAMS",
            help="CO2 equivalents of electricity. [BSO_CO2_G_PER_KWH, else 473, the world's mean]",
            show_default=False,
        ),
    ] = None
    url: UrlOption = None
    database_url: DatabaseOption = None


@with_options
def report(options: ReportOptions) -> None:
    """Report what was saved: energy, time, money, CO2, with all that was tried and aborted counted against it.

    Compared with trainings with the default batch size at full power on the same hardware, month by month. ± reaches
    over about 95 %. A negative saving is a loss. Assumed energy stands apart from measured energy. What cannot be
    compared, since the default batch size never reached the target there, is counted as unknown.
    """
    from bso.service.tariff import read_tariff

    names = ("price_per_kwh", "price_per_gpu_hour", "currency", "co2_g_per_kwh")
    tariff = read_tariff(os.environ, **{name: getattr(options, name) for name in names})
    given = {"--since": options.since, "--until": options.until}
    first, last = (None if text is None else month_from(text, option=name) for name, text in given.items())
    try:
        every, unreadable = asyncio.run(savings_seen(here(url=options.url, database_url=options.database_url)))
    except NothingThere as error:
        every, unreadable = [], []
        print_notice(Text(str(error)))
    chosen = [each for each in every if fnmatchcase(each.job_id, options.jobs)]
    found = [(each.job_id, one) for each in chosen for one in each.saved if _is_within(one, first, last)]
    form = Form.JSON if options.as_json else options.form
    if found or form in (Form.CSV, Form.JSON):
        _write(_rows(found, options.by), tariff, by=options.by, form=form, output=options.output)
    elif every:
        print_notice("no trial has ended in that time, of jobs that can be seen from here")
    if (first or last) and any(one.month == EARLIER for each in chosen for one in each.saved):
        print_notice("months that are long ago are kept as one, `earlier`: it counts as before all other months")
    if unreadable:
        print_notice(Text(f"left out, since they cannot be read: {listed(unreadable)} (`bso jobs show JOB` says why)"))


def _is_within(one: SavedInMonth, first: str | None, last: str | None) -> bool:
    """Whether a month lies between two others; what was added up counts as before all of them."""
    return (first is None or one.month >= first) and (last is None or one.month <= last)


def _rows(found: Sequence[Found], by: By) -> dict[str, TotalSaved]:
    """What each job, team or month saved, and all together under no name."""
    rows: dict[str, list[Found]] = {}
    for each in sorted(found, key=lambda each: (each[1].month if by is By.MONTH else "", each[0])):
        rows.setdefault(_name(each, by), []).append(each)
    return {**{name: total_saved(alike) for name, alike in rows.items()}, "": total_saved(found)}


def _name(each: Found, by: By) -> str:
    job_id, one = each
    if by is By.TEAM:
        return job_id.partition("-")[0]
    return job_id if by is By.JOB else one.month or "earlier"


def _write(rows: Mapping[str, TotalSaved], tariff: Tariff, *, by: By, form: Form, output: Path | None) -> None:
    if form is Form.TABLE and output is None:
        columns = _columns(rows, tariff, by=by)
        absent = [name for name, cells in columns.items() if {*cells} <= {NOTHING, "0"}]
        print_block(table_of("", columns, right=_RIGHT, optional=_OPTIONAL, absent=absent))
        for line in _notes(rows[""], tariff):
            print_result(line)
        return
    if form is Form.JSON and output is None:
        print_json(_fields(rows, tariff, by=by))
        return
    try:
        opened = nullcontext(sys.stdout) if output is None else output.open("w", encoding="utf-8", newline="")
        with opened as stream:
            stream.write(_text(rows, tariff, by=by, form=form))
    except OSError as error:
        raise Misconfigured(f"the report cannot be written to {output}: {error.strerror}") from error


def _text(rows: Mapping[str, TotalSaved], tariff: Tariff, *, by: By, form: Form) -> str:
    if form is Form.JSON:
        from bso.schema.codec import json_line

        return f"{json_line(_fields(rows, tariff, by=by))}\n"
    if form is Form.CSV:
        import io

        from bso_cli.exports import csv_writer

        stream = io.StringIO(newline="")
        flat = [_flat(each) for each in _fields(rows, tariff, by=by)["rows"]]
        if flat:
            write = csv_writer(stream, flat[0])
            for each in flat:
                write(each)
        return stream.getvalue()
    columns = _columns(rows, tariff, by=by)
    lines = [list(columns), ["---:" if name in _RIGHT else "---" for name in columns]]
    lines += [list(cells) for cells in zip(*columns.values(), strict=True)]
    table = "\n".join(f"| {' | '.join(_in_markdown(cell) for cell in cells)} |" for cells in lines)
    return "\n\n".join([table, *_notes(rows[""], tariff)]) + "\n"


def _in_markdown(cell: str) -> str:
    return cell.replace("\\", "\\\\").replace("|", "\\|")


def _columns(rows: Mapping[str, TotalSaved], tariff: Tariff, *, by: By) -> dict[str, list[str]]:
    totals = list(rows.values())
    return {
        by.value: [name or "all" for name in rows],
        "models": [str(one.models) for one in totals],
        "trials": [str(one.trials) for one in totals],
        "energy": [energy_in_words(one.energy_j) for one in totals],
        "share": [percent(one.energy_share) for one in totals],
        "assumed energy": [energy_in_words(one.assumed_energy_j) for one in totals],
        "time": [time_in_words(one.time_s) for one in totals],
        "GPU time": [time_in_words(one.gpu_time_s) for one in totals],
        "money": [money_in_words(tariff.money(one), tariff) for one in totals],
        "CO2": [co2_in_words(tariff.co2_g(one)) for one in totals],
        "unknown": [str(one.trials_unknown) for one in totals],
    }


def _notes(total: TotalSaved, tariff: Tariff) -> Iterable[str]:
    """What the columns mean, and what they leave out."""
    yield (
        "Saved, against the default batch size at full power; all trials are counted, also those that were stopped. "
        "± reaches over about 95 %."
    )
    if total.trials_unknown:
        yield (
            f"{counted(total.trials_unknown, 'trial')} can be compared with nothing: there the default batch size has "
            "not reached the target. Nothing of them is in these sums."
        )
    if total.unmeasured:
        yield f"The energy of {counted(total.unmeasured, 'trial')} was not measured to its end: only their time counts."
    if total.assumed_energy_j is not None:
        yield "Assumed energy is a constant power times the time: no meter could be read. It is in no other column."
    if tariff.price_per_kwh is None and tariff.price_per_gpu_hour is None:
        yield "Set BSO_PRICE_PER_KWH or BSO_PRICE_PER_GPU_HOUR to see money."


def _fields(rows: Mapping[str, TotalSaved], tariff: Tariff, *, by: By) -> dict[str, Any]:
    """The report for programs: in J, s, g and the currency, with standard errors."""
    named = {name: _row_fields(total, tariff) for name, total in rows.items()}
    return {
        "by": by.value,
        "tariff": tariff,
        "rows": [{by.value: name, **fields} for name, fields in named.items() if name],
        "total": named[""],
    }


def _row_fields(total: TotalSaved, tariff: Tariff) -> dict[str, Any]:
    return {
        "models": total.models,
        "trials": total.trials,
        "trials_unknown": total.trials_unknown,
        "trials_unmeasured": total.unmeasured,
        "saved_energy_j": total.energy_j,
        "saved_energy_share": total.energy_share,
        "saved_assumed_energy_j": total.assumed_energy_j,
        "saved_time_s": total.time_s,
        "saved_time_share": total.time_share,
        "saved_gpu_time_s": total.gpu_time_s,
        "saved_money": tariff.money(total),
        "saved_co2_g": tariff.co2_g(total),
    }


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the report with a column for each value and each standard error."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if name.startswith("saved_") and not name.endswith("_share"):
            found[name] = None if value is None else value.value
            found[f"{name}_error"] = None if value is None else value.error
        else:
            found[name] = value
    return found
