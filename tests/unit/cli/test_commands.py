"""The command tree: help, usage errors, failures as sentences."""

import inspect

import pytest
from typer.testing import CliRunner

from bso.domain.errors import Misconfigured, Retryable
from bso_cli.main import app
from bso_cli.worker import worker
from bso_workers.settings import WorkerSettings

COMMANDS = [
    [],
    ["demo"],
    ["recur"],
    ["monitor"],
    ["simulate"],
    *(["simulate", name] for name in ("single", "cluster", "trace")),
    ["worker"],
    ["migrate"],
    ["doctor"],
    ["jobs"],
    *(["jobs", name] for name in ("list", "show", "why", "allow", "export", "delete", "purge")),
    ["dead-letters"],
    *(["dead-letters", name] for name in ("list", "requeue", "purge", "counts")),
    ["events"],
    *(["events", name] for name in ("history", "tail", "prune")),
    *(["replay", name] for name in ("verify", "export", "import", "rebuild", "publish", "what-if")),
    ["import"],
    ["import", "zeus"],
]

run = CliRunner().invoke


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_each_command_explains_itself(command: list[str]) -> None:
    result = run(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage: bso" in result.output
    assert len(result.output) > 300


def test_the_version_is_printed() -> None:
    assert run(app, ["--version"]).output.strip().count(".") == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["dead-letters", "requeue"],
        ["jobs", "show"],
        ["recur", "0", "true"],
        ["recur", "3"],
        ["demo", "--recurrences", "0"],
        ["monitor", "--interval", "0"],
        ["monitor", "--count", "0"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    assert run(app, arguments).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [(["events", "list"], "'history'"), (["jobs", "shwo"], "'show'"), (["job", "list"], "'jobs'")],
    ids=" ".join,
)
def test_an_unknown_command_has_the_nearest_one_proposed(arguments: list[str], nearest: str) -> None:
    result = run(app, arguments)
    assert result.exit_code == 2
    assert f"Did you mean {nearest}?" in " ".join(result.stderr.replace("│", " ").split())


def test_a_command_like_no_other_gets_a_list_of_those_there_are() -> None:
    said = " ".join(run(app, ["events", "xyz"]).stderr.replace("│", " ").split())
    assert "There is no command 'xyz'. The commands are history, tail, prune." in said


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_shows_no_flag_as_if_it_took_a_value(command: list[str]) -> None:
    assert "<bool>" not in run(app, [*command, "--help"]).output


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_cuts_nothing_off_at_80_columns(command: list[str]) -> None:
    assert "…" not in run(app, [*command, "--help"], env={"COLUMNS": "80"}).output


def test_a_wrong_word_for_an_option_is_answered_with_the_right_ones() -> None:
    said = " ".join(run(app, ["jobs", "export", "j", "--format", "json"]).stderr.replace("│", " ").split())
    assert "Invalid value for '--format': 'json' is not one of 'jsonl', 'csv'." in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo", "-n", "x"], "Invalid value for '--recurrences' / '-n': 'x' is not a whole number"),
        (["demo", "-n", "1.5"], "Invalid value for '--recurrences' / '-n': '1.5' is not a whole number"),
        (["recur", "--grace", "long", "1", "true"], "Invalid value for '--grace': 'long' is not a number"),
        (["recur", "--launches", "0", "1", "true"], "Invalid value for '--launches': 0 is less than 1"),
        (["simulate", "single", "--eta", "2"], "Invalid value for '--eta': 2 is more than 1"),
        (["tokens", "create", "me", "--expires", "-1d"], "Invalid value for '--expires': expected a time such as"),
        (["tokens", "create", "me", "--may", "x"], "Invalid value for '--may': expected read, train, operate,"),
        (["tokens", "rotate", 12 * "a", "--overlap", "5x"], "Invalid value for '--overlap': expected a time such as"),
        (["tokens", "rotate", 12 * "a", "--expires", "5x"], "Invalid value for '--expires': expected a time such as"),
        (["jobs", "purge", "--before", "tomorrow"], "Invalid value for '--before': expected a date"),
        (["events", "prune", "--before", "x", "--export", "x"], "Invalid value for '--before': expected a date"),
        (["events", "history", "j", "--type", "x"], "Invalid value for '--type': there is no event type 'x';"),
        (["report", "--since", "x"], "Invalid value for '--since': expected a month such as"),
        (["report", "--until", "x"], "Invalid value for '--until': expected a month such as"),
        (["replay", "publish", "--since", "x"], "Invalid value for '--since': expected a date"),
        (["replay", "publish", "--before", "x"], "Invalid value for '--before': expected a date"),
        (["jobs", "why", "j", "x"], "Invalid value for '[TRIAL]': 'x' is not a whole number"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_value_is_named_with_what_was_expected(arguments: list[str], said: str) -> None:
    result = run(app, arguments)
    assert result.exit_code == 2
    assert f"{said} " in " ".join(result.stderr.replace("│", " ").replace("╰", " ").split())


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        (["jobs", "show"], "bso jobs show [OPTIONS] JOB"),
        (["jobs", "why"], "bso jobs why [OPTIONS] JOB [TRIAL]"),
        (["recur"], "bso recur [OPTIONS] [N] [-- COMMAND...]"),
        (["monitor"], "bso monitor [OPTIONS] [-- COMMAND...]"),
        (["dead-letters", "requeue"], "bso dead-letters requeue [OPTIONS] [MESSAGE_ID]..."),
        (["replay", "import"], "bso replay import [OPTIONS] FILE [JOB]..."),
        (["simulate", "single"], "bso simulate single [OPTIONS] [TRACES]"),
        (["simulate", "cluster"], "bso simulate cluster [OPTIONS] [TRACES] CLUSTER_TRACE"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage_shows_required_arguments_bare_and_others_in_brackets(command: list[str], usage: str) -> None:
    lines = [line.strip() for line in run(app, [*command, "--help"]).output.splitlines()]
    assert f"Usage: {usage}" in lines


def test_a_refusal_is_one_sentence_and_2_where_an_address_is_wrong() -> None:
    result = run(app, ["jobs", "list"], env={"BSO_URL": "ftp://somewhere", "BSO_DATABASE_URL": ""})
    assert result.exit_code == 2
    assert result.stderr.startswith("bso: ")
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_debug_shows_where_it_came_from() -> None:
    result = run(app, ["--debug", "jobs", "list"], env={"BSO_URL": "ftp://somewhere", "BSO_DATABASE_URL": ""})
    assert isinstance(result.exception, Misconfigured)


def test_what_may_work_later_is_said_to() -> None:
    from bso_cli.refusals import sentence_of

    assert "again" in sentence_of(Retryable("the database is away"))


def test_an_error_without_words_is_its_docstring() -> None:
    from bso_cli.refusals import sentence_of

    class Broken(Misconfigured):
        """The thing is broken."""

    assert sentence_of(Broken()) == "The thing is broken."


def test_every_setting_of_a_worker_is_an_option() -> None:
    assert set(inspect.signature(worker, eval_str=False).parameters) == set(WorkerSettings.model_fields)


def test_a_workers_options_are_described_as_its_settings_are() -> None:
    import typer

    command = typer.main.get_command(app).commands["worker"]  # type: ignore[attr-defined]  # a group
    helps = {parameter.name: parameter.help for parameter in command.params}
    for name, setting in WorkerSettings.model_fields.items():
        assert str(helps[name]).startswith(str(setting.description)), name
