"""Hostile text in every field and every word of a command line: every command shows it, and no terminal obeys it.

The fields are those that a database has, the commands those of the command line: a new one is tried by itself.
"""

import asyncio
import csv
import io
import itertools
import json
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import sqlalchemy
import typer

from bso.domain.commands import GrantJob, Request
from bso.domain.foreign_text import shown, shown_lines, text_of_cell
from bso.domain.replies import Reply
from bso.domain.rights import Right
from bso.schema.codec import all_events
from bso.service.engine import Engine
from bso.service.log_epochs import LogWatch
from bso.storage import open_store
from bso.storage.tables import metadata
from bso_cli.main import app
from bso_migrations import upgrade
from tests.acceptance.conftest import BSO, Command
from tests.acceptance.plans import SCREENS, Ran, assert_nothing_is_obeyed, run
from tests.acceptance.recorded_jobs import SERVER, Job
from tests.defences.hostile_text import hostile, obeyed
from tests.defences.samples import PLACE, Samples
from tests.unit.simulator.problems import write_known_traces

JOB = "digits"
MARK = re.compile(r"PWNED\d+x")
GOOD_WORDS = {
    "job_id": JOB,
    "jobs": JOB,
    "trial": "1",
    "batch_size": "16",
    "login": "bob",
    "number": "1",
    "before": "1d",
    "may": "read",
    "job": JOB,
}
"""What an argument, or an option that must be given, may be called, and a good word for it."""
LASTING: set[tuple[str, ...]] = {("demo",), ("events", "tail"), ("worker",), ("recur",), ("monitor",)}
LASTING |= {("simulate", "single"), ("serve",), ("dashboard",)}
"""What runs for long once its words are right: tried with all words wrong at once."""
CHANGING = {"allow", "grant", "give", "delete", "purge", "prune", "rebuild", "import", "publish", "restored", "migrate"}
CHANGING |= {"flush", "drop", "requeue", "trace", "cluster", "zeus"}
QUICK: dict[tuple[str, ...], list[str]] = {("replay", "what-if"): ["--seeds", "1", "-n", "2", "--processes", "1"]}


# What there is to run.


def leaves(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of the command line, by its path."""
    command = typer.main.get_command(app) if command is None else command
    for name, below in getattr(command, "commands", {}).items():
        yield from leaves(below, (*path, name))
    if not getattr(command, "commands", {}):
        yield path, command


LEAVES = dict(leaves())


def takes_value(param: Any) -> bool:
    return param.param_type_name == "option" and not param.is_flag


def needed(param: Any) -> bool:
    return bool(param.required)


def good_words(path: tuple[str, ...]) -> Iterator[list[str]]:
    """Words with which a command runs, in every form that it can print: with --json, and each choice of an option."""
    params = LEAVES[path].params
    given = [
        [*([max(one.opts, key=len)] if takes_value(one) else []), GOOD_WORDS.get(one.name, "nothing")]
        for one in params
        if needed(one)
    ]
    choices = [
        [[max(one.opts, key=len), choice] for choice in get_args(one.type_descriptor.annotation)]
        for one in params
        if takes_value(one) and get_origin(one.type_descriptor.annotation) is Literal
    ]
    forms: list[list[list[str]]] = [*choices]
    if any("--json" in one.opts for one in params):
        forms.append([[], ["--json"]])
    optional = [one for one in params if one.name in ("job_id", "trial") and not needed(one)]
    forms += [[[], [GOOD_WORDS[one.name]]] for one in optional]
    for form in itertools.product(*forms):
        yield [*path, *itertools.chain(*given), *itertools.chain(*form), *QUICK.get(path, [])]


def hostile_words(path: tuple[str, ...]) -> Iterator[list[str]]:
    """A command with a hostile word in each place in turn, those that last with all at once."""
    places: list[list[str]] = [[hostile("argument")]]
    places += [[max(one.opts, key=len), hostile(one.name)] for one in LEAVES[path].params if takes_value(one)]
    if path in LASTING:
        yield [*path, *itertools.chain(*places)]
        return
    given = [GOOD_WORDS.get(one.name, "nothing") for one in LEAVES[path].params if needed(one) and not takes_value(one)]
    for place in places:
        yield [*path, *place, *(given if place[1:] else [])]


def is_read(path: tuple[str, ...]) -> bool:
    return path not in LASTING and path[-1] not in CHANGING and path[0] != "dead-letters"


READ = [words for path in LEAVES if is_read(path) for words in good_words(path)]


# What there is to read.


@dataclass
class OwnersTransport:
    """Sends commands to an engine in this process, in the name of a login."""

    engine: Engine

    async def call(self, request: Request, *, timeout_s: float) -> Reply:
        [answer] = await self.engine.execute([replace(request, user="ann")])
        return answer.reply


def on(file: Path) -> Mapping[str, str]:
    """The environment of a command that uses this file."""
    return {"BSO_URL": f"sqlite:///{file}", "BSO_DATABASE_URL": f"sqlite:///{file}"}


@contextmanager
def opened(file: Path) -> Iterator[sqlite3.Connection]:
    """A file as somebody may write it who has it: what is written is kept, and the file free again."""
    with closing(sqlite3.connect(file)) as database:
        yield database
        database.commit()


async def _record(file: Path) -> None:
    url = f"sqlite:///{file}"
    await upgrade(url)
    store = open_store(url, has_outbox=False)
    try:
        transport: Any = OwnersTransport(Engine(store, watch=LogWatch(store.log_epochs)))
        for name, policy in ((JOB, "pruning_thompson"), ("hopeless", "pruning_thompson"), ("curved", "curve")):
            failing = frozenset({16, 32} if name == "hopeless" else {})
            job = Job(transport, name, [16, 32], 16, SERVER, epoch_s=2.0, power_w=90.0, failing=failing)
            await job.register(policy=policy, version="first")
            await job.recur(3 if policy != "curve" else 2)
            await job.run_out_of_memory(32, recurrence_id="night")
            await job.profile(16, 200.0, 100.0)
            grant = GrantJob(login="bob", right=Right.TRAIN)
            await transport.call(Request(command_id=_id(name), job_id=name, command=grant), timeout_s=1.0)
        await job.begin()
    finally:
        await store.close()
    with opened(file) as database:
        database.execute(
            "INSERT INTO parked_job (job_id, parked_at, retry_at, reason) VALUES "
            "('digits', '2026-01-01 00:00:00.000000', '2026-01-01 00:00:00.000000', 'why it is parked')"
        )
        database.execute(
            "UPDATE trial SET nonfinite_metric = 'NaN', metric = NULL, late_outcome = 'converged', learning_rate = ? "
            "WHERE trial_number = 1",
            ('{"value": 0.1, "reference_batch_size": 16, "rule": "linear"}',),
        )
        for seq, (name, kind) in enumerate(all_events().items(), 1):
            payload = PLACE.sub("x", json.dumps(Samples().of(kind), ensure_ascii=False))
            database.execute(
                "INSERT INTO event (job_id, seq, type, payload, command_id, part, recorded_at, log_epoch) "
                "VALUES ('of-each', ?, ?, ?, ?, 1, '2026-01-01 00:00:00.000000', 1)",
                (seq, name, payload, f"{seq:036d}"),
            )


def _id(name: str) -> str:
    return f"00000000-0000-0000-0000-{len(name):012d}"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with jobs that have come by everything that is kept of jobs."""
    file = tmp_path_factory.mktemp("recorded") / "bso.sqlite"
    asyncio.run(_record(file))
    with opened(file) as database:
        database.execute("PRAGMA journal_mode=DELETE")
    return file


@dataclass(frozen=True, order=True)
class Field:
    """Where somebody who has the database may write: a column, or a place in the JSON of one."""

    table: str
    column: str
    kind: str = ""
    place: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ".".join(filter(None, (self.table, self.column, self.kind, *self.place)))


@dataclass
class Cells:
    """The rows and columns of a database that hold text, and the fields in them."""

    file: Path
    fields: dict[Field, list[tuple[str, str, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with opened(self.file) as database:
            tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for table in tables:
                if not table.startswith(("sqlite_", "alembic_")):
                    self._look(database, table)

    def _look(self, database: sqlite3.Connection, table: str) -> None:
        cursor = database.execute(f'SELECT rowid, * FROM "{table}"')
        names = [one[0] for one in cursor.description][1:]
        for row_id, *values in cursor:
            kind = str(dict(zip(names, values, strict=True)).get("type", ""))
            for column, value in zip(names, values, strict=True):
                if isinstance(value, str):
                    for place in places_of(value):
                        where = Field(table, column, kind if place else "", place)
                        self.fields.setdefault(where, []).append((table, column, row_id))

    def write(self, database: sqlite3.Connection, where: Field, text: str) -> None:
        for table, column, row_id in self.fields[where]:
            ((value,),) = database.execute(f'SELECT "{column}" FROM "{table}" WHERE rowid = ?', (row_id,))
            changed = text if not where.place else json.dumps(replaced(json.loads(value), where.place, text))
            database.execute(f'UPDATE OR IGNORE "{table}" SET "{column}" = ? WHERE rowid = ?', (changed, row_id))


def places_of(value: str) -> list[tuple[str, ...]]:
    """The strings in JSON, and keys that are no names of fields; for other text, the text as a whole."""
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict | list):
        return [()]
    return sorted(set(_places(parsed)))


def _places(value: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(value, str):
        yield at
    elif isinstance(value, list):
        for one in value:
            yield from _places(one, (*at, "*"))
    elif isinstance(value, dict):
        for key, one in value.items():
            is_name = re.fullmatch("[a-z_]+", key) and key != "bob"
            if not is_name:
                yield (*at, "KEY")
            yield from _places(one, (*at, key if is_name else "*"))


def replaced(value: Any, place: tuple[str, ...], text: str) -> Any:
    if not place:
        return text if isinstance(value, str) else value
    first, *rest = place
    if isinstance(value, list):
        return [replaced(one, tuple(rest), text) for one in value]
    if not isinstance(value, dict):
        return value
    if first == "KEY":
        return {text if number == 0 else key: one for number, (key, one) in enumerate(value.items())}
    is_any = first == "*"
    return {key: replaced(one, tuple(rest), text) if is_any or key == first else one for key, one in value.items()}


LOOKING = {"event": [["events", "history"]]}
"""What shows a table; the others are shown by the list of jobs, and by what is shown of one."""
LISTS = [["jobs", "list"], ["jobs", "show", JOB]]


# What is text of nobody: numbers, as JSON.
NO_TEXT = {"power_profile.measurements"}


@pytest.mark.slow
def test_every_column_of_text_is_tried(recorded: Path) -> None:
    tried = {f"{one.table}.{one.column}" for one in Cells(recorded).fields}
    kept = {
        f"{table.name}.{column.name}"
        for table in metadata.sorted_tables
        for column in table.columns
        if isinstance(column.type, sqlalchemy.String) and table.name in {one.table for one in Cells(recorded).fields}
    }
    assert kept - tried == NO_TEXT


@dataclass(frozen=True)
class Tampered:
    """Files with hostile text in one field each, and one with hostile text in all fields that are only shown."""

    alone: Mapping[str, Path]
    together: Path
    free: Sequence[str]
    seen: Sequence[Ran]


@pytest.fixture(scope="module")
def tampered(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Tampered:
    folder = tmp_path_factory.mktemp("tampered")
    cells = Cells(recorded)
    alone: dict[Field, Path] = {}
    for number, where in enumerate(sorted(cells.fields)):
        alone[where] = folder / f"{number}.sqlite"
        shutil.copy(recorded, alone[where])
        with opened(alone[where]) as database:
            cells.write(database, where, hostile(f"PWNED{number}x"))
    untouched = run(folder, [(words, on(recorded)) for words in (*LISTS, *LOOKING["event"])])
    codes = {tuple(one.words): one.code for one in untouched}
    looks = [(where, words) for where in alone for words in LOOKING.get(where.table, LISTS)]
    seen = run(folder, [(words, on(alone[where])) for where, words in looks])
    spoilt = {where for (where, words), one in zip(looks, seen, strict=True) if one.code != codes[tuple(words)]}
    free = [where for where in alone if where not in spoilt]
    together = folder / "together.sqlite"
    shutil.copy(recorded, together)
    with opened(together) as database:
        for number, where in enumerate(free):
            if not where.column.endswith("job_id"):
                cells.write(database, where, hostile(f"PWNED{number}x"))
    return Tampered(
        alone={str(where): file for where, file in alone.items()},
        together=together,
        free=[str(where) for where in free],
        seen=seen,
    )


@pytest.mark.slow
def test_the_fields_that_people_see_are_among_those_that_are_tried(tampered: Tampered) -> None:
    assert {
        "job.job_id",
        "job.owner",
        "job.version",
        "trial.reason",
        "trial.outcome_reason",
        "trial.gpu_model",
        "trial.recurrence_id",
        "event.payload.trial_ended.reason",
        "event.payload.trial_started.hardware.gpu_model",
        "event.payload.job_granted.login",
        "job.state.owner",
        "job.state.grants.KEY",
        "job.spec.version",
        "parked_job.reason",
        "power_profile.gpu_model",
    } <= tampered.alone.keys()
    assert {"event.payload.trial_ended.reason", "trial.gpu_model", "job.owner"} <= {*tampered.free}


@pytest.mark.slow
def test_hostile_text_in_any_field_is_shown_and_not_obeyed(tampered: Tampered) -> None:
    assert_nothing_is_obeyed(tampered.seen)
    shown = {mark for one in tampered.seen for mark in MARK.findall(one.said)}
    assert len(shown) > len(tampered.alone) / 3, "too little of it was ever printed for this to say much"


@pytest.mark.slow
@pytest.mark.parametrize("screen", SCREENS)
def test_every_command_that_reads_shows_hostile_text_in_every_form(
    tampered: Tampered, screen: str, tmp_path: Path
) -> None:
    ran = run(tmp_path, [(words, on(tampered.together)) for words in READ], screen)
    assert_nothing_is_obeyed(ran, screen)
    for one in ran:
        has_text = one.words[0] in ("jobs", "events") or one.words[:2] in (["replay", "verify"], ["replay", "export"])
        assert MARK.search(one.said) or not has_text, one


@pytest.mark.slow
@pytest.mark.parametrize("screen", ["in a pipe", "on a terminal"])
def test_no_word_of_a_command_line_is_obeyed(recorded: Path, screen: str, tmp_path: Path) -> None:
    file = tmp_path / "bso.sqlite"
    shutil.copy(recorded, file)
    words = [words for path in LEAVES for words in hostile_words(path)]
    ran = run(tmp_path, [(one, on(file)) for one in words], screen)
    assert_nothing_is_obeyed(ran, screen)
    assert {one.code for one in ran} >= {1, 2}


@pytest.mark.slow
def test_help_draws_nothing_but_colours(recorded: Path, tmp_path: Path) -> None:
    ran = run(tmp_path, [([*path, "--help"], on(recorded)) for path in LEAVES], "on a terminal")
    assert_nothing_is_obeyed(ran, "on a terminal")
    assert {one.code for one in ran} == {0}


@pytest.mark.slow
def test_programs_read_from_json_and_csv_what_was_written(tampered: Tampered, tmp_path: Path) -> None:
    file = tampered.alone["trial.outcome_reason"]
    forms = [["jobs", "export", JOB, "--format", form, "--output", f"out.{form}"] for form in ("jsonl", "csv")]
    lines, table = run(tmp_path, [(words, on(file)) for words in forms])
    assert (lines.code, table.code) == (0, 0)
    exact = [json.loads(line)["outcome_reason"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as stream:
        cells = [text_of_cell(row["outcome_reason"]) for row in csv.DictReader(stream)]
    (text,) = {*exact}
    assert re.sub(MARK, "", text) == hostile("")
    assert [cell.count("\n") for cell in cells] == [text.count("\n")] * len(exact)
    assert obeyed(cells[0].replace("\n", "")) == []


@pytest.mark.slow
def test_no_cell_of_a_csv_file_is_a_formula(recorded: Path, tmp_path: Path) -> None:
    formula = "=cmd|' /C calc'!A0"
    file = tmp_path / "bso.sqlite"
    shutil.copy(recorded, file)
    with opened(file) as database:
        database.execute(
            "UPDATE trial SET outcome_reason = ?, gpu_model = ?, metric = -1.5, nonfinite_metric = NULL",
            (formula, "@SUM(A1)"),
        )
    (ran,) = run(tmp_path, [(["jobs", "export", JOB, "--format", "csv", "--output", "-x.csv"], on(file))])
    assert ran.code == 0, ran.said
    rows = list(csv.DictReader(io.StringIO((tmp_path / "-x.csv").read_text(encoding="utf-8"))))
    for row in rows:
        assert (row["outcome_reason"], row["hardware_gpu_model"], row["metric"]) == (
            f"'{formula}",
            "'@SUM(A1)",
            "-1.5",
        )
        assert text_of_cell(row["outcome_reason"]) == formula


@pytest.mark.slow
def test_names_in_traces_and_of_files_are_shown_in_pictures_tables_and_csv(tmp_path: Path) -> None:
    name = f"={hostile('PWNED0x').replace('/', '')}".replace("\r", "")
    folder = tmp_path / f"{name}-\udcff"  # a name that is not UTF-8
    folder.mkdir()
    write_known_traces(folder)
    for file in folder.glob("*.csv"):
        file.write_text(file.read_text().replace("shapes", f'"{name}"'), newline="")
    quickly = ["--seeds", "1", "--processes", "1"]
    written = ["--csv", "trials.csv", "--plots", str(folder / "plots")]
    commands = [
        ["simulate", "single", str(folder), *quickly, "-n", "2", *written],
        ["simulate", "single", str(folder), *quickly, "-n", "2", "--json"],
        ["simulate", "trace", str(folder), "--groups", "1", "--recurrences", "2", "--output", "cluster.csv"],
        ["simulate", "cluster", str(folder), "cluster.csv", *quickly],
        ["simulate", "single", str(folder / "nothing")],
    ]
    ran = run(tmp_path, [(words, {}) for words in commands], "on a terminal")
    assert_nothing_is_obeyed(ran, "on a terminal")
    assert [one.code for one in ran] == [0, 0, 0, 1, 1], ran  # as shown, the dataset's name is another one
    assert all("PWNED0x" in one.said for one in (*ran[:2], *ran[3:]))
    assert len([*(folder / "plots").iterdir()]) == 3
    for written_file, column in (("trials.csv", "problem"), ("cluster.csv", "dataset")):
        with (tmp_path / written_file).open(newline="", encoding="utf-8") as stream:
            for row in csv.DictReader(stream):
                assert row[column].startswith("'=PWNED0x")
                assert text_of_cell(row[column]).startswith(shown_lines(name))


@pytest.mark.parametrize("program", [[str(BSO), "worker"], [sys.executable, "-m", "bso_workers"]])
def test_a_worker_that_cannot_start_obeys_no_setting(bso: Command, program: Sequence[str]) -> None:
    servers = {"BSO_AMQP_URL": "amqp://127.0.0.1:1/", "BSO_DATABASE_URL": "mysql://127.0.0.1:1/bso"}
    quotas = json.dumps(["\u202ePWNED\x9b"], ensure_ascii=False)
    environ = bso.environment | servers | {"BSO_QUOTAS": quotas}
    done = subprocess.run(program, env=environ, capture_output=True, text=True, check=False)
    assert r"\u202ePWNED\x9b" in done.stderr
    assert done.returncode != 0


TRAINING = """
import logging, sys
from bso_client import BatchSizeOptimizer, BsoError, JobSpec

logging.basicConfig(level=logging.DEBUG, format="%(levelname)s %(message)s")
bad = sys.argv[1]
fields = {"job_id": "toy", "batch_sizes": [8, 16], "default_batch_size": 8, "target_metric": 0.9}
for wrong in ("job_id", "job_id_prefix", "version", "policy"):
    try:
        BatchSizeOptimizer(JobSpec(**{**fields, "job_id": None, wrong: bad})).get_batch_size()
    except BsoError as error:
        print("refused:", error)
for trial in BatchSizeOptimizer(JobSpec(**fields)).trials():
    try:
        with trial:
            trial.on_evaluate(0.1)
            raise RuntimeError(bad)
    except RuntimeError:
        print("ended:", trial.outcome_reason)
        break
for trial in BatchSizeOptimizer(JobSpec(**fields)).trials():
    with trial:
        trial.call_off(bad)
    print("called off:", trial.outcome_reason)
    break
"""


def test_a_training_prints_and_records_hostile_text_as_shown(bso: Command, tmp_path: Path) -> None:
    script, text = tmp_path / "train.py", hostile("PWNED0x")
    script.write_text(TRAINING)
    done = subprocess.run(
        [sys.executable, script, text], env=bso.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert obeyed(done.stdout) == obeyed(done.stderr) == []
    said = ["refused"] * 4 + ["ended", "called off"]
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == said
    trials = bso.lines("jobs", "export", "toy")
    assert [trial["outcome_reason"] for trial in trials] == [
        f"RuntimeError: {shown(' '.join(text.split()))}",
        shown(text),
    ]
    assert obeyed(bso.ok("jobs", "why", "toy")) == []
