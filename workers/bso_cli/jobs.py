"""``bso jobs``: what the optimizer knows of each job, and why it decided as it did."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.text import Text

from bso.domain.errors import Misconfigured
from bso.domain.identifiers import login_problem
from bso.domain.quantities import counted, listed, moment
from bso.domain.sentences import RIGHTS
from bso_cli import jobs_decisions, live_events
from bso_cli import jobs_hindsight as hindsight
from bso_cli import jobs_listed as listed_jobs
from bso_cli import jobs_printed as printed
from bso_cli.access import NothingThere, ask, in_store, jobs_seen, seeing, seen, show_job, without_process
from bso_cli.jobs_power import profile_tables
from bso_cli.moments import EXPECTED, moment_from
from bso_cli.options import (
    DatabaseOption,
    JobArgument,
    JsonOption,
    LoginArgument,
    OutputOption,
    UrlOption,
    YesOption,
    here,
    known_broker,
)
from bso_cli.refusals import CommandGroup, CommandRefused
from bso_cli.settings import Places
from bso_cli.terminal import (
    HANG,
    confirm,
    print_answer,
    print_block,
    print_blocks,
    print_json,
    print_notice,
    print_result,
    styled,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bso.domain.replies import JobDescription
    from bso.domain.rights import Right
    from bso.domain.trial import Trial
    from bso.service.records import PowerProfile

app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="See what is known of each job, and why it was decided so."
)


@app.command("list")
def list_jobs(
    url: UrlOption = None,
    database_url: DatabaseOption = None,
    deleted: Annotated[bool, typer.Option("--deleted", help="Show deleted jobs too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the jobs of the database; where only a broker is known (BSO_URL), those that its login may read."""
    places = here(url=url, database_url=database_url)

    async def read() -> None:
        try:
            every, in_trouble = await jobs_seen(places)
            parked = {one.job_id: one for one in in_trouble}
            found = [one for one in every if deleted or not one.summary.is_deleted]
            if not found:
                left_out = f" ({counted(len(every), 'deleted one')}: --deleted)" if every else ""
                nothing = "no jobs in this database yet" if places.has_database else "no jobs that your login may read"
                print_notice(f"{nothing}{left_out}")
        except NothingThere as error:
            found, parked = [], {}
            print_notice(Text(str(error)))
        from bso.service.listed_jobs import listed_job

        jobs = [listed_job(one, parked.get(one.summary.job_id)) for one in found]
        if as_json:
            print_json([listed_jobs.fields_of(job) for job in jobs])
        elif jobs:
            print_block(listed_jobs.jobs_table(jobs))
        for one in parked.values():
            print_notice(Text(listed_jobs.trouble_of(one, has_database=places.has_database)))
        for sentence in listed_jobs.dead_trainings(jobs, without_process(places)):
            print_notice(sentence)
        for job in jobs:
            if job.attention_in_full:
                print_notice(Text(job.attention_in_full))

    asyncio.run(read())


@app.command()
def show(
    job_id: JobArgument,
    trials: Annotated[int, typer.Option(min=0, metavar="N", help="How many of the last trials to show.")] = 20,
    plots: Annotated[
        Path | None,
        typer.Option(
            *("--plot", "--plots"),
            metavar="FOLDER",
            help="Also draw what was chosen, what batch sizes cost and what recurrences cost, as SVG files there.",
            show_default=False,
        ),
    ] = None,
    url: UrlOption = None,
    database_url: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a job: its batch sizes with their status and posterior, its power profiles, and its last trials."""
    places = here(url=url, database_url=database_url)

    async def read() -> None:
        shown = await show_job(places, job_id)
        async with seeing(places) as reads:
            profiles, recorded = await reads.power_profiles(job_id), await reads.trials(job_id)
        last = recorded[-trials:] if trials else []
        if as_json:
            print_json({"job": shown.job, "power_profiles": profiles, "trials": last})
        elif shown.job is None:
            print_blocks(*printed.trials_tables(last, of=len(recorded)))
        else:
            dead = printed.dead_trainings(job_id, shown.job.active_trials, without_process(places))
            _print_job(shown.job, profiles=profiles, recorded=recorded, last=last, dead=dead)
        if plots is not None and shown.job is not None:
            for path in _drawn(shown.job, recorded, plots):
                print_notice(Text(f"wrote {path}"))
        if shown.parked is not None:
            print_notice(Text(listed_jobs.trouble_of(shown.parked, has_database=places.has_database)))
        if shown.unreadable is not None:
            raise CommandRefused(listed_jobs.unreadable(job_id, shown.unreadable, has_database=places.has_database))

    asyncio.run(read())


@app.command()
def why(
    job_id: JobArgument,
    trial: Annotated[
        int | None,
        typer.Argument(min=1, metavar="[TRIAL]", help="Only this trial, and what was known then.", show_default=False),
    ] = None,
    url: UrlOption = None,
    database_url: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show why each trial got its batch size and how it ended, in the words that were recorded then.

    Of one trial also what was known at that moment: the batch sizes there were to choose from, and what each was
    expected to cost. All of it comes from the event log alone.
    """
    places = here(url=url, database_url=database_url)

    decisions = seen(places, lambda reads: jobs_decisions.decisions(reads, job_id, trial_number=trial))
    if not decisions:
        raise CommandRefused(_nothing_recorded(job_id, trial))
    known = None if trial is None else seen(places, lambda reads: hindsight.known_before(reads, job_id, trial))
    if as_json:
        print_json(decisions if known is None else {"known": known, "decisions": decisions})
        return
    if known is not None:
        print_block(hindsight.known_table(known))
        print_result("")
    for line in jobs_decisions.story(decisions):
        print_result(styled(line), hang=HANG)


@app.command()
def allow(
    job_id: JobArgument,
    batch_size: Annotated[int, typer.Argument(metavar="BATCH_SIZE", help="The batch size.", show_default=False)],
    hardware: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Only on this hardware kind (hardware_key of `bso jobs show --json`)."),
    ] = None,
    url: UrlOption = None,
    database_url: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a batch size be tried again that ran out of memory or of time."""
    from bso.domain.commands import AllowBatchSize
    from bso.domain.replies import AllowedAgain

    places = here(url=url, database_url=database_url)
    command = AllowBatchSize(batch_size=batch_size, hardware_key=hardware)
    reply = asyncio.run(ask(places, job_id, command, AllowedAgain))
    kinds = counted(len(reply.hardware_keys), "hardware kind")
    print_answer(reply, f"Batch size {batch_size} of job {job_id} may be tried again on {kinds}.", as_json=as_json)


@app.command()
def grant(
    job_id: JobArgument,
    login: LoginArgument,
    may: Annotated[
        str,
        typer.Option(
            metavar="RIGHT",
            help="read: see the job and inherit from it. train: also begin trials and report. operate: also change the "
            "specification, allow batch sizes, delete the job. nothing: take away what was granted. Of several, "
            "separated by commas, the last of these counts: it includes those before it.",
        ),
    ],
    url: UrlOption = None,
    database_url: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a login of the broker use a job that it does not own. Only the job's owner, its team and operators may."""
    from bso.domain.commands import GrantJob
    from bso.domain.replies import RightsRecorded

    right = _right_of(may)
    places = here(url=url, database_url=database_url)
    reply = asyncio.run(ask(places, job_id, GrantJob(login=login, right=right), RightsRecorded))
    can = f"may {RIGHTS[right]}" if right else "may do nothing with it any more"
    print_answer(reply, f"Job {job_id}: login {login} {can}.", as_json=as_json)
    if as_json or (broker := _broker_of(places)) is None:
        return
    if right:
        print_notice("This opens commands and history at once.")
        live_events.print_opening(login, job_id, broker=broker)
    else:
        print_notice("This closes commands and history at once.")
        live_events.print_closing(login, job_id, broker=broker)


@app.command()
def give(
    job_id: JobArgument,
    login: LoginArgument,
    yes: YesOption = False,
    url: UrlOption = None,
    database_url: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make another login of the broker the owner of a job. Only the job's owner, its team and operators may."""
    from bso.domain.commands import GiveJob
    from bso.domain.replies import RightsRecorded

    places = here(url=url, database_url=database_url)
    if (problem := login_problem(login)) is not None:
        raise CommandRefused(f"the login {problem}")
    shown = asyncio.run(show_job(places, job_id)).job
    former = None if shown is None else shown.owner
    if not yes and former != login:
        confirm(_giving(job_id, former, login))
    reply = asyncio.run(ask(places, job_id, GiveJob(login=login), RightsRecorded))
    print_answer(reply, f"Job {job_id} belongs to login {login}.", as_json=as_json)
    if as_json or former == login or (broker := _broker_of(places)) is None:
        return
    live_events.print_opening(login, job_id, broker=broker)
    if former is not None:
        live_events.print_closing(former, job_id, broker=broker)


@app.command()
def export(
    job_id: JobArgument,
    what: Annotated[
        Literal["trials", "events", "profiles"],
        typer.Option(
            metavar="WHAT",
            help="trials: one row each; events: the whole history; profiles: one row per power limit profiled.",
        ),
    ] = "trials",
    format: Annotated[  # noqa: A002  the option's name
        Literal["jsonl", "csv"], typer.Option(help="JSON lines, or comma-separated values with a header.")
    ] = "jsonl",
    output: OutputOption = None,
    url: UrlOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """Export a job's trials, events or power profiles for other programs."""
    from bso_cli.exports import exported

    places = here(url=url, database_url=database_url)
    rows = seen(places, lambda reads: exported(reads, job_id, what=what, form=format, output=output))
    if not rows and what == "profiles":
        raise CommandRefused(f"no power limits were profiled for job {job_id}; `bso jobs list` shows the jobs")
    if not rows:
        raise CommandRefused(_nothing_recorded(job_id, None))
    print_notice(f"{counted(rows, 'row')} exported{f' to {output}' if output else ''}")


@app.command()
def delete(
    job_id: JobArgument,
    yes: YesOption = False,
    url: UrlOption = None,
    database_url: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a job: running trials are cancelled, its history stays until `bso jobs purge`."""
    from bso.domain.commands import DeleteJob
    from bso.domain.replies import Deleted

    places = here(url=url, database_url=database_url)
    if not yes:
        job = asyncio.run(show_job(places, job_id)).job
        knowledge = "its knowledge" if job is None else f"the knowledge from {counted(job.trials, 'trial')}"
        confirm(f"Delete job {job_id} and {knowledge}?")
    reply = asyncio.run(ask(places, job_id, DeleteJob(), Deleted))
    cancelled = f"; cancelled trials: {listed(reply.cancelled_trials)}" if reply.cancelled_trials else ""
    print_answer(
        {"job_id": job_id, "cancelled_trials": reply.cancelled_trials},
        f"Job {job_id} is deleted{cancelled}.",
        as_json=as_json,
    )


@app.command()
def purge(
    before: Annotated[
        str, typer.Option(metavar="WHEN", help=f"Only jobs that were deleted before: {EXPECTED}.")
    ] = "30d",
    yes: YesOption = False,
    database_url: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove every trace of jobs that were deleted some time ago, their history included."""
    from bso.service.retention import purge_jobs

    database = here(database_url=database_url).database("bso jobs purge")
    limit = moment_from(before, option="--before", now=datetime.now(UTC))
    if not yes:
        confirm(f"Remove all jobs deleted before {moment(limit)} UTC for good?")
    purged = in_store(database, lambda store: purge_jobs(store, deleted_before=limit))
    print_answer({"purged": purged}, f"{counted(len(purged), 'job')} removed: {listed(purged)}", as_json=as_json)


def _drawn(job: JobDescription, recorded: Sequence[Trial], folder: Path) -> Iterator[Path]:
    """Write the pictures of a job, those of several hardware kinds with a number. Raises Misconfigured."""
    from bso.drawing import job_pictures

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, kind in enumerate(job.kinds or (None,), start=1):
            for name, svg in job_pictures(job, recorded, kind=kind).items():
                path = folder / (f"{name}-{number}.svg" if len(job.kinds) > 1 else f"{name}.svg")
                path.write_text(svg, encoding="utf-8")
                yield path
    except OSError as error:
        raise Misconfigured(f"pictures cannot be written to {folder}: {error.strerror}") from error


def _print_job(
    job: JobDescription,
    *,
    profiles: Sequence[PowerProfile],
    recorded: Sequence[Trial],
    last: Sequence[Trial],
    dead: Iterable[str],
) -> None:
    for line in printed.job_lines(job):
        print_result(styled(line))
    for sentence in dead:
        print_result(sentence)
    if (doubt := printed.target_doubt(job, recorded)) is not None:
        print_result(styled(f"[bold yellow]{doubt}[/]"))
    print_blocks(*(printed.kind_table(kind, job, recorded) for kind in job.kinds))
    if job.kinds:
        print_result(printed.explained(job.kinds[0].about_costs, has_means=True))
    for line in printed.savings(job):
        print_result(styled(line))
    print_blocks(*profile_tables(profiles, job.spec), *printed.trials_tables(last, of=job.trials))
    if printed.is_energy_assumed(job, recorded):
        print_result("")
        print_result(printed.ENERGY_IS_ASSUMED)


def _right_of(text: str) -> Right | None:
    """The highest of the rights that somebody has typed; None: nothing."""
    from bso.domain.rights import Right

    names = [name.strip() for name in text.split(",")]
    if names == ["nothing"]:
        return None
    known = [right.value for right in Right]
    if unknown := [name for name in names if name not in known]:
        expected = f"expected {', '.join(known)}, several of them, or nothing alone"
        raise typer.BadParameter(f"{expected}; got {unknown[0]!r}", param_hint="--may")
    return Right(max(names, key=known.index))


def _broker_of(places: Places) -> str | None:
    """The address of the broker that has the live events of these jobs; None: none is known, or none has."""
    return None if places.is_embedded and places.database_url is None else known_broker(places)


def _giving(job_id: str, former: str | None, login: str) -> str:
    """Who loses and who gets what when a job is given away, and the question whether to do it."""
    loses = f"Job {job_id} belongs to login {former}, which keeps only what its team or a grant allows."
    if former is None:
        loses = f"Job {job_id} belongs to nobody: every login may train it, and then only those that have a right."
    gets = f"Login {login} may then do everything with it, also delete it or give it away."
    return f"{loses} {gets} Give job {job_id} to login {login}?"


def _nothing_recorded(job_id: str, trial: int | None) -> str:
    what = f"trial {trial} of job {job_id}" if trial is not None else f"job {job_id}"
    return f"nothing is recorded of {what}; `bso jobs list` shows the jobs"
