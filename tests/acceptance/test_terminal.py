"""What a newcomer types first reads well: on a terminal of 80 and of 200 columns, in a pipe, and without colours."""

import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bso_cli.terminal import HANG
from tests.acceptance.conftest import BSO, Command, command_in
from tests.acceptance.recorded_jobs import LONG, record
from tests.acceptance.screen import Screen, run_in_terminal

WIDTHS = (80, 200)
PIPE = "in a pipe"
JOBS = ("digits-nightly", "hopeless", "laptop", "sentiment", LONG)
QUICKLY = ("--seeds", "2", "-n", "3", "--processes", "1")
READ = [
    ["jobs", "list"],
    *(["jobs", "show", job] for job in JOBS),
    ["jobs", "why", LONG],
    ["jobs", "why", "laptop"],
    ["jobs", "why", LONG, "9"],
    ["jobs", "why", "sentiment", "8"],
    ["events", "history", "laptop"],
    ["replay", "what-if", "digits-nightly", *QUICKLY, "--policy", "pruning_thompson", "--eta", "0.3"],
    ["replay", "what-if", "laptop", *QUICKLY, "--policy", "pruning_thompson"],
    ["doctor"],
]
SOME = [["jobs", "list"], ["jobs", "show", LONG], ["jobs", "why", "laptop"], ["doctor"]]
COLOURS = {str(code) for code in (*range(30, 50), *range(90, 108))}


@dataclass
class Reader:
    """Runs commands that only read, each once for every kind of screen."""

    bso: Command
    screens: dict[tuple[object, ...], Screen] = field(default_factory=dict)
    pipes: dict[tuple[object, ...], str] = field(default_factory=dict)

    def shown(self, *command: str, width: int, **environment: str) -> Screen:
        key = (command, width, *environment.items())
        if key not in self.screens:
            self.screens[key] = shown(self.bso, *command, width=width, **environment)
        return self.screens[key]

    def piped(self, *command: str, **environment: str) -> str:
        key = (command, *environment.items())
        if key not in self.pipes:
            self.pipes[key] = piped(self.bso, *command, **environment)
        return self.pipes[key]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """Where jobs of every kind are recorded."""
    folder = tmp_path_factory.mktemp("recorded")
    record(folder)
    return Reader(without_columns(command_in(folder)))


def without_columns(bso: Command) -> Command:
    """The command that knows the width of its terminal from nothing but the terminal."""
    del bso.environment["COLUMNS"]
    return bso


def shown(bso: Command, *arguments: object, width: int, **environment: str) -> Screen:
    """What a terminal of a width shows of a command, which must end well."""
    command = [str(BSO), *map(str, arguments)]
    code, screen = run_in_terminal(command, bso.environment | environment, width=width)
    assert code == 0, screen.text
    return screen


def piped(bso: Command, *arguments: object, **environment: str) -> str:
    """What a pipe gets of both outputs of a command, which must end well."""
    done = bso(*arguments, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def words(text: str) -> set[str]:
    """The words of a text, without the punctuation around them and without rules."""
    found = {word.strip(".,;:()") for word in text.split()}
    return {word for word in found if word and set(word) != {"─"}}


def assert_reads_well(screen: Screen) -> None:
    for line in screen.too_long:
        assert max(map(len, line.split())) > screen.width - HANG, line  # a path, left whole to be copied
    for line in screen.text.splitlines():
        assert not re.fullmatch(r"\s*[A-Za-z]", line), f"a column of single letters: {screen.text}"
    assert not re.search(r"\d(\.\d+)?e[+-]?\d\d", screen.text), "a power of ten"


@pytest.mark.parametrize("width", [80, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("command", READ, ids=" ".join)
def test_on_a_terminal_no_line_is_too_long_and_no_word_is_broken(
    recorded: Reader, command: list[str], width: int
) -> None:
    screen = recorded.shown(*command, width=width)
    whole = words(recorded.piped(*command))
    assert_reads_well(screen)
    said = re.sub("No room for: .*", "", screen.text)
    assert words(said) <= whole
    if said == screen.text:
        assert words(recorded.piped(*command)) <= words(said)


@pytest.mark.parametrize("command", READ, ids=" ".join)
def test_in_a_pipe_each_record_is_one_line_however_long(recorded: Reader, command: list[str]) -> None:
    said = recorded.piped(*command)
    assert "\x1b" not in said
    assert "No room for" not in said
    assert [line for line in said.splitlines() if line != line.rstrip()] == []
    narrow = recorded.shown(*command, width=80).text
    assert len(said.splitlines()) <= len(narrow.splitlines())


@pytest.mark.parametrize("command", SOME, ids=" ".join)
def test_a_pipe_is_as_wide_as_columns_says(recorded: Reader, command: list[str]) -> None:
    assert recorded.piped(*command, COLUMNS="80").splitlines() == recorded.shown(*command, width=80).text.splitlines()


def test_grep_finds_whole_records(recorded: Reader) -> None:
    [line] = [line for line in recorded.piped("jobs", "list").splitlines() if LONG in line]
    for part in (" 2 ", " 256 ", "converged", " h ", "4 x NVIDIA H100 80GB HBM3"):
        assert part in line
    listed, why = [line for line in recorded.piped("jobs", "list").splitlines() if "needs attention" in line]
    assert listed.startswith("hopeless ")
    assert why.startswith("job hopeless needs attention: 4 recurrences in a row ended without a model")
    said = recorded.piped("jobs", "why", LONG)
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [•▸] ", line) for line in said.splitlines())


@pytest.mark.parametrize("command", SOME, ids=" ".join)
def test_without_colours_the_same_is_said(recorded: Reader, command: list[str]) -> None:
    coloured, plain = recorded.shown(*command, width=80), recorded.shown(*command, width=80, NO_COLOR="1")
    assert plain.text == coloured.text
    assert plain.styles & COLOURS == set()


def test_colours_are_seen_where_they_are_wanted(recorded: Reader) -> None:
    """Else the test before could not fail."""
    assert recorded.shown("jobs", "show", LONG, width=80).styles & COLOURS


@pytest.mark.parametrize("width", WIDTHS)
def test_the_list_says_of_each_job_where_it_stands(recorded: Reader, width: int) -> None:
    text = " ".join(recorded.shown("jobs", "list", width=width).text.split())
    jobs = recorded.bso.json("jobs", "list")
    starts = sorted(text.index(job["job_id"]) for job in jobs)
    for job in jobs:
        begin = text.index(job["job_id"])
        words_of_job = re.findall(r"[\w.]+", text[begin : next((at for at in starts if at > begin), None)])
        for number in (job["trials"], job["recurrences"]):
            assert str(number) in words_of_job, (job["job_id"], words_of_job)
    for part in ("running", "not converged", "converged", "4 x NVIDIA H100 80GB HBM3 and 1 other kind", "µs", " h "):
        assert part in text


def test_the_list_as_json_has_plain_numbers(recorded: Reader) -> None:
    jobs = {job["job_id"]: job for job in recorded.bso.json("jobs", "list")}
    assert {name: [kind["needs_attention"] for kind in job["kinds"]] for name, job in jobs.items()} == {
        "digits-nightly": [False],
        "hopeless": [True],
        "laptop": [False],
        "sentiment": [False],
        LONG: [False, False],
    }
    assert jobs[LONG]["last_trial"]["time_s"] > 3600
    assert 0 < jobs["laptop"]["last_trial"]["time_s"] < 1e-3
    assert jobs[LONG]["version_number"] == 2


@pytest.mark.parametrize("where", [80, 200, PIPE])
def test_assumed_energy_is_said_once_and_not_in_columns(recorded: Reader, where: int | str) -> None:
    for command in (["jobs", "show", "laptop"], ["jobs", "why", "laptop"], ["replay", "what-if", "laptop", *QUICKLY]):
        said = recorded.shown(*command, width=where).text if isinstance(where, int) else recorded.piped(*command)
        assert " ".join(said.split()).count("Energy is assumed, not measured") == 1
        assert not re.search(r"time\s+energy|energy of an epoch", said)


def test_excluded_and_infeasible_batch_sizes_say_why(recorded: Reader) -> None:
    said = recorded.piped("jobs", "show", LONG)
    assert "64 is excluded: did not converge in 3 trials in a row" in said
    assert "65536 is infeasible: out of memory from batch size 65536 on" in said


RECURRING = ["recur", "3", "--seed", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("where", [80, 200, PIPE])
def test_a_recurring_training_reads_well_and_says_once_that_energy_is_assumed(
    bso: Command, training: list[str], where: int | str, tmp_path: Path
) -> None:
    del without_columns(bso).environment["BSO_ENERGY"]
    bso.environment["BSO_POWERCAP_DIR"] = str(tmp_path)
    kept = ["--log-dir", str(tmp_path / "runs")]
    command = [*RECURRING, *kept, "--", *training, "goes"]
    if isinstance(where, int):
        screen = shown(bso, *command, width=where)
        summary = shown(bso, "recur", "--summary", *kept, width=where)
        assert_reads_well(screen)
        assert_reads_well(summary)
        assert words(summary.text) <= words(screen.text)
        said = screen.text
    else:
        said = piped(bso, *command)
        assert max(map(len, re.findall(r"recurrence \d of 3 ─+", said))) == 80
    whole = words(piped(bso, "recur", "--summary", *kept))
    assert whole <= words(said)
    assert " ".join(said.split()).count("energy is assumed to be 1 W times time: `bso doctor` says why") == 1
    assert " ".join(said.split()).count("Energy is assumed, not measured") == 1


def test_an_outcome_prints_as_the_word_that_is_recorded(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from bso_client import BatchSizeOptimizer, JobSpec\n"
        "spec = JobSpec(job_id='toy', batch_sizes=[8], default_batch_size=8, target_metric=0.9)\n"
        "for trial in BatchSizeOptimizer(spec).trials():\n"
        "    with trial:\n"
        "        trial.on_evaluate(0.95)\n"
        "print(trial.outcome)\n"
    )
    bso = command_in(tmp_path / "state")
    assert bso.ok("monitor", "--", sys.executable, script).splitlines() == ["converged"]


def test_a_measured_command_reads_well_at_80_columns(bso: Command) -> None:
    screen = shown(without_columns(bso), "monitor", "--", "true", width=80)
    assert_reads_well(screen)
    assert re.search(r"^time \d[\d.]* (ms|s), energy ", screen.text, re.MULTILINE)


def test_help_reads_well_at_80_columns(bso: Command) -> None:
    without_columns(bso)
    for command in (["--help"], ["jobs", "show", "--help"], ["recur", "--help"]):
        screen = shown(bso, *command, width=80)
        assert screen.too_long == []
        assert "…" not in screen.text


def test_brackets_in_paths_and_names_are_printed_as_they_are(tmp_path: Path) -> None:
    bso = command_in(tmp_path / "st[/red]x")
    assert "st[/red]x" in piped(bso, "jobs", "list")
    bso.ok("migrate")
    assert "[/bold]nightly" in piped(bso, "events", "history", "[/bold]nightly")


@pytest.mark.parametrize("columns", ["0", "²", "-5", "many"])
def test_columns_that_are_no_width_count_as_unset(recorded: Reader, columns: str) -> None:
    assert recorded.piped("jobs", "list", COLUMNS=columns) == recorded.piped("jobs", "list")


def test_a_list_without_jobs_says_so(bso: Command) -> None:
    bso.ok("migrate")
    assert "no jobs in this database yet" in piped(bso, "jobs", "list")


def test_a_path_stays_whole_to_be_copied(tmp_path: Path) -> None:
    folder = tmp_path / ("a-folder-with-a-rather-long-name" * 4)
    bso = without_columns(command_in(folder))
    code, screen = run_in_terminal([str(BSO), "jobs", "list"], bso.environment, width=80)
    assert code == 0
    assert os.fspath(folder / "bso.sqlite") in screen.text
    assert len(screen.too_long) == 1


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_the_demo_reads_well(bso: Command, tmp_path: Path, width: int) -> None:
    screen = shown(without_columns(bso), "demo", "--recurrences", 4, "--out", tmp_path / "out", width=width)
    whole = piped(bso, "demo", "--recurrences", 1, "--out", tmp_path / "out")
    assert_reads_well(screen)
    headings = ("batch", "size", "status", "trials", "converged", "mean", "cost", "expected", "next")
    assert set(headings) <= words(screen.text) & words(whole)
    [conclusion] = [line for line in whole.splitlines() if line.startswith("With all that was tried")]
    named = re.search(r"means of (\d+) recurrences and (\d+) trainings, 5 of them run to compare", conclusion)
    assert named is not None, conclusion
    rows = {line.split()[0]: line for line in whole.splitlines() if re.match(r"\s*\d+ ", line)}
    converged = re.findall(r" (\d+) ", rows["256"])[2]
    assert (int(named[1]), int(converged) + 5) == (5, int(named[2]))
