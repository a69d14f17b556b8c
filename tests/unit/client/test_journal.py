"""The journal on disk: what is in it after kills, torn writes and a full disk, and how it is delivered."""

import asyncio
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from bso.domain.commands import BeginTrial, DeleteJob, FinishTrial, RegisterJob, ReportEpoch, Request
from bso.domain.errors import Misconfigured, Rejected
from bso.domain.replies import KEPT, Problem, Reply
from bso.domain.trial import Outcome
from bso_client.delivery.flush import Flushed, flush
from bso_client.delivery.journal import Destination, Journal, Kept, destination_of, folder_of
from bso_client.delivery.left_behind import contents, drop, take_over
from bso_client.delivery.outbox import beginning_id, new_command_id
from tests.servers import PATIENCE_S
from tests.unit.client.doubles import HARDWARE, ReachableOptimizer, job_spec

HERE = Destination(address="amqp://broker:5672/jobs", login="trainer")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path, HERE, "job")
    yield journal
    journal.close()


def report(epoch: float, *, training: str = "t", number: int = 1, trial_id: str = "one", metric: float = 0.5) -> Kept:
    command = ReportEpoch(
        trial_number=number,
        trial_id=trial_id,
        epoch=epoch,
        time_s=epoch,
        energy_j=epoch,
        metric=metric,
        is_journalled=True,
    )
    return Kept(training=training, request=Request(command_id=new_command_id(), job_id="job", command=command))


def kept(command: object, *, training: str = "t", command_id: str | None = None) -> Kept:
    request = Request(command_id=command_id or new_command_id(), job_id="job", command=command)  # type: ignore[arg-type]
    return Kept(training=training, request=request)


def left_in(folder: Path) -> list[float]:
    """The epochs of the reports that ended processes have left, in their order."""
    return [
        letter.request.command.epoch  # type: ignore[union-attr]
        for left in take_over(folder)
        for letter in left.letters
    ]


def test_nothing_is_written_before_something_has_to_be_kept(tmp_path: Path, journal: Journal) -> None:
    journal.delivered(new_command_id())
    assert list(tmp_path.iterdir()) == []


def test_what_was_kept_is_there_for_the_next_process_in_its_order(journal: Journal) -> None:
    letters = [report(epoch) for epoch in (1.0, 2.0, 3.0)]
    for letter in letters:
        journal.keep(letter)
    journal.delivered(letters[1].request.command_id)
    journal.close()
    [left] = [(left.letters, left.file.path.stat().st_mode & 0o777) for left in take_over(journal.folder)]
    assert [letter.request for letter in left[0]] == [letters[0].request, letters[2].request]
    assert left[1] == 0o600


def test_a_file_with_nothing_left_is_deleted(journal: Journal) -> None:
    letter = report(1.0)
    journal.keep(letter)
    journal.delivered(letter.request.command_id)
    assert [path.name for path in journal.folder.glob("*.jsonl")] == []
    journal.keep(report(2.0))
    assert len(list(journal.folder.glob("*.jsonl"))) == 1


def test_after_somebody_has_deleted_its_file_a_journal_makes_a_new_one(tmp_path: Path, journal: Journal) -> None:
    journal.keep(report(1.0))
    shutil.rmtree(tmp_path / "journal")
    journal.keep(report(2.0))
    journal.close()
    assert left_in(journal.folder) == [2.0]


def test_what_a_living_process_keeps_is_left_to_it(tmp_path: Path, journal: Journal) -> None:
    journal.keep(report(1.0))
    assert left_in(journal.folder) == []
    [found] = contents(tmp_path)
    assert (found.is_held, len(found.letters)) == (True, 1)


def test_files_of_several_processes_are_delivered_in_the_order_they_were_begun(tmp_path: Path) -> None:
    journals = [Journal(tmp_path, HERE, "job") for _ in range(3)]
    for epoch, one in enumerate(journals, start=1):
        one.keep(report(float(epoch)))
    for one in reversed(journals):
        one.close()
    assert left_in(journals[0].folder) == [1.0, 2.0, 3.0]


def test_a_frozen_process_that_is_about_to_begin_a_file_holds_up_nobody(journal: Journal) -> None:
    journal.folder.mkdir(parents=True)
    with FileLock(journal.folder / "number.lock"), FileLock(journal.folder / "00000001.lock"):
        journal.keep(report(1.0))
    journal.close()
    assert [path.name for path in journal.folder.glob("*.jsonl")] == ["00000002.jsonl"]
    assert left_in(journal.folder) == [1.0]


def test_journals_that_begin_at_once_have_files_of_their_own(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, HERE, "job")
    start = threading.Barrier(8)

    def keep(epoch: float) -> None:
        journal = Journal(tmp_path, HERE, "job")
        start.wait(PATIENCE_S)
        journal.keep(report(epoch))
        journal.close()

    epochs = [float(epoch) for epoch in range(8)]
    with ThreadPoolExecutor(len(epochs)) as pool:
        list(pool.map(keep, epochs))
    assert sorted(left_in(folder)) == epochs


def test_address_login_and_job_have_folders_of_their_own(tmp_path: Path) -> None:
    places = [HERE, replace(HERE, login="other"), replace(HERE, address="amqp://elsewhere/jobs")]
    folders = {folder_of(tmp_path, place, job) for place in places for job in ("job", "job-2")}
    assert len(folders) == 6


def test_a_place_never_shows_the_password() -> None:
    assert destination_of("amqps://trainer:s3cret@broker:15671/jobs?tls_ca=/ca.pem") == Destination(
        address="amqp://broker:15671/jobs", login="trainer"
    )
    assert "s3cret" not in repr(destination_of("amqp://trainer:s3cret@broker"))


@pytest.mark.parametrize(
    "url",
    [
        "amqp://u:p@h",
        "amqp://u:p@h/",
        "amqp://u@h:5672/",
        "amqp://u:p@H/%2F",
        "amqps://u@h",
        "amqps://u@h:5671?tls_ca=ca",
    ],
)
def test_a_virtual_host_is_one_destination_however_its_url_is_written_and_with_tls_or_without(url: str) -> None:
    assert destination_of(url) == Destination(address="amqp://h/%2F", login="u")


def test_a_relative_path_is_the_file_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert destination_of("sqlite:///bso.db") == destination_of(f"sqlite:///{tmp_path / 'bso.db'}")
    assert destination_of("sqlite+aiosqlite:///bso.db") == destination_of("sqlite:///bso.db")


class Synchronised:
    """What was fsynced, files and folders, by the names that they have now."""

    def __init__(self) -> None:
        self._inodes: list[int] = []
        self._fsync = os.fsync

    def fsync(self, descriptor: int) -> None:
        self._inodes.append(os.fstat(descriptor).st_ino)
        self._fsync(descriptor)

    def count(self, path: Path) -> int:
        return self._inodes.count(path.stat().st_ino)


@pytest.fixture
def synchronised(monkeypatch: pytest.MonkeyPatch) -> Synchronised:
    synchronised = Synchronised()
    monkeypatch.setattr("os.fsync", synchronised.fsync)
    return synchronised


def test_each_record_is_on_the_disk_itself_before_anybody_relies_on_it(
    journal: Journal, synchronised: Synchronised
) -> None:
    letter = report(1.0)
    journal.keep(letter)
    [path] = journal.folder.glob("*.jsonl")
    assert synchronised.count(path) == 1
    journal.keep(report(2.0))
    assert synchronised.count(path) == 2
    journal.delivered(letter.request.command_id)
    assert synchronised.count(path) == 3


def test_the_names_of_new_files_and_folders_are_on_the_disk_too(tmp_path: Path, synchronised: Synchronised) -> None:
    journal = Journal(tmp_path / "new" / "state", HERE, "job")
    letter = report(1.0)
    journal.keep(letter)
    above = [journal.folder, *journal.folder.parents]
    for folder in above[: above.index(tmp_path) + 1]:
        assert synchronised.count(folder), folder
    assert synchronised.count(journal.folder.parent) == 2, "once for the job's folder, once for destination.json"
    before = synchronised.count(journal.folder)
    journal.set_aside(letter, "refused")
    assert synchronised.count(journal.folder / "set-aside.jsonl") == 1
    assert synchronised.count(journal.folder) == before + 1
    journal.close()


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_line_is_left_out_and_the_next_one_is_sound(journal: Journal, cut: int) -> None:
    journal.keep(report(1.0))
    journal.keep(report(2.0))
    [path] = journal.folder.glob("*.jsonl")
    whole = path.read_bytes()
    journal.close()
    path.write_bytes(whole[:-cut])
    assert left_in(journal.folder) == [1.0]


def test_a_damaged_line_is_set_aside_and_the_others_are_delivered(tmp_path: Path, journal: Journal) -> None:
    for epoch in (1.0, 2.0, 3.0):
        journal.keep(report(epoch))
    journal.close()
    [path] = journal.folder.glob("*.jsonl")
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1].replace(b'"epoch":2.0', b'"epoch":7.0')
    path.write_bytes(b"\n".join(lines))
    for left in take_over(journal.folder):
        assert [letter.request.command.epoch for letter in left.letters] == [1.0, 3.0]  # type: ignore[union-attr]
        for letter in left.letters:
            left.delivered(letter)
    [found] = contents(tmp_path)
    assert found.set_aside[0]["reason"] == f"line 2 of {path.name} is damaged"
    assert not path.exists()


def test_a_torn_line_of_what_was_set_aside_hides_no_other(tmp_path: Path, journal: Journal) -> None:
    letters = [report(epoch) for epoch in (1.0, 2.0, 3.0)]
    for letter in letters:
        journal.keep(letter)
    for letter, reason in zip(letters, ("first", "torn", "last"), strict=True):
        journal.set_aside(letter, reason)
        aside = journal.folder / "set-aside.jsonl"
        if reason == "torn":
            aside.write_bytes(aside.read_bytes()[:-30])
    [found] = contents(tmp_path)
    assert [record["reason"] for record in found.set_aside] == ["first", "last"]


def test_a_file_of_a_newer_format_is_left_alone(journal: Journal, caplog: pytest.LogCaptureFixture) -> None:
    journal.keep(report(1.0))
    journal.close()
    [path] = journal.folder.glob("*.jsonl")
    body = json.dumps({"kind": "letter", "format": 2, "what": "ever"}).encode()
    path.write_bytes(b"%08x %s\n" % (zlib.crc32(body), body))
    assert left_in(journal.folder) == []
    assert path.exists()
    assert "it is left to the release that wrote it" in caplog.text


KEEPING = """
import sys
from pathlib import Path
from bso_client.delivery.journal import Journal
from tests.unit.client.test_journal import HERE, report
journal = Journal(Path(sys.argv[1]), HERE, "job")
for epoch in range(1, 10_000):
    journal.keep(report(float(epoch)))
    print(epoch, flush=True)
"""


def test_whatever_was_kept_when_a_process_is_killed_is_there(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, HERE, "job")
    for after in (1, 2, 3, 7, 20):
        process = subprocess.Popen(
            [sys.executable, "-c", KEEPING, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
        )
        assert process.stdout is not None
        seen = [int(process.stdout.readline()) for _ in range(after)]
        process.send_signal(signal.SIGKILL)
        with process.stdout as lines:
            seen += [int(line) for line in lines.read().split()]
        process.wait(PATIENCE_S)
        found = left_in(folder)
        assert found[: len(seen)] == [float(epoch) for epoch in seen]
        assert len(found) <= len(seen) + 1, "at most one was on its way"
        drop(folder)


def test_a_full_disk_leaves_what_is_there_as_it_is(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import resource, signal, sys
        from pathlib import Path
        from bso_client.delivery.journal import Journal
        from tests.unit.client.test_journal import HERE, report
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
        journal = Journal(Path(sys.argv[1]), HERE, "job")
        for epoch in range(1, 100):
            try:
                journal.keep(report(float(epoch)))
            except OSError as error:
                print(epoch, type(error).__name__)
                break
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        journal.keep(report(100.0))
    """)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )
    failed_at, error = done.stdout.split()
    assert error == "OSError"
    kept_before = [float(epoch) for epoch in range(1, int(failed_at))]
    assert kept_before
    assert left_in(folder_of(tmp_path, HERE, "job")) == [*kept_before, 100.0]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


@pytest.mark.parametrize("damage", ["", "{", '"a word"', '{"address": "a"}'])
def test_a_damaged_address_hides_no_other_and_is_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    journals = [Journal(tmp_path, place, "job") for place in (HERE, replace(HERE, login="other"))]
    for journal in journals:
        journal.keep(report(1.0))
        journal.close()
    description = journals[0].folder.parent / "destination.json"
    description.write_text(damage)
    assert [found.destination.login for found in contents(tmp_path)] == ["other"]
    assert f"{description} is damaged" in caplog.text

    journals[0].keep(report(2.0))
    journals[0].close()
    assert len(contents(tmp_path)) == 2


def test_a_disk_that_is_full_at_first_leaves_no_half_written_address(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import resource, signal, sys
        from pathlib import Path
        from bso_client.delivery.journal import Journal
        from tests.unit.client.test_journal import HERE, report
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        Journal(Path(sys.argv[1]), HERE, "job").keep(report(1.0))
    """)
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path.cwd())
    assert "OSError" in done.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert contents(tmp_path) == []


def test_dropping_deletes_what_ended_processes_have_left(tmp_path: Path, journal: Journal) -> None:
    journal.keep(report(1.0))
    journal.close()
    assert drop(journal.folder) == 1
    assert contents(tmp_path) == []


# ---------------------------------------------------------------------------------------------------------- delivery


async def flushed(journal: Journal, optimizer: ReachableOptimizer) -> Flushed:
    journal.close()
    return await flush(journal.folder, optimizer, timeout_s=PATIENCE_S)


def unregistered(journal: Journal, *, training: str, outcome: Outcome = Outcome.CONVERGED) -> None:
    """A whole training that nobody has answered."""
    begin = BeginTrial(hardware=HARDWARE, batch_size=64)
    finish = FinishTrial(trial_number=0, trial_id="", outcome=outcome, reason="it says so", is_journalled=True)
    metric = 0.95 if outcome is Outcome.CONVERGED else 0.1
    journal.keep(kept(begin, training=training, command_id=beginning_id(training)))
    journal.keep(report(1.0, training=training, number=0, trial_id=""))
    journal.keep(report(2.0, training=training, number=0, trial_id="", metric=metric))
    journal.keep(kept(finish, training=training))


async def register(optimizer: ReachableOptimizer) -> None:
    command = RegisterJob(spec=job_spec().requested)
    request = Request(command_id=new_command_id(), job_id="job", command=command)
    await optimizer.call(request, timeout_s=PATIENCE_S)


async def test_a_training_that_nobody_answered_is_registered_and_recorded(
    journal: Journal, optimizer: ReachableOptimizer
) -> None:
    await register(optimizer)
    unregistered(journal, training="a")
    unregistered(journal, training="b", outcome=Outcome.NOT_CONVERGED)
    done = await flushed(journal, optimizer)
    rows = await optimizer.store.trials("job")
    assert (done.delivered, done.set_aside, done.obstacle) == (8, 0, None)
    assert [(row.outcome, row.epoch) for row in rows] == [(Outcome.CONVERGED, 2.0), (Outcome.NOT_CONVERGED, 2.0)]
    assert list(journal.folder.glob("*.jsonl")) == []


@pytest.mark.parametrize("answers_lost_after", range(1, 5))
async def test_a_delivery_that_breaks_off_is_done_again_and_nothing_is_recorded_twice(
    journal: Journal, optimizer: ReachableOptimizer, answers_lost_after: int
) -> None:
    class BreaksOff(ReachableOptimizer):
        async def call(self, request: Request, *, timeout_s: float) -> Reply:
            if len(self.requests) == answers_lost_after:
                self.loses_answers_to = (type(request.command),)
            return await super().call(request, timeout_s=timeout_s)

    breaking = BreaksOff()
    await register(breaking)
    unregistered(journal, training="a")
    first = await flushed(journal, breaking)
    assert first.obstacle is not None
    breaking.loses_answers_to = ()
    second = await flush(journal.folder, breaking, timeout_s=PATIENCE_S)
    assert (first.delivered + second.delivered, second.obstacle) == (4, None)
    [row] = await breaking.store.trials("job")
    assert (row.outcome, row.reports) == (Outcome.CONVERGED, 2)


async def test_a_trial_that_has_ended_meanwhile_gets_a_late_result(
    journal: Journal, optimizer: ReachableOptimizer
) -> None:
    await register(optimizer)
    begin = Request(command_id=new_command_id(), job_id="job", command=BeginTrial(hardware=HARDWARE))
    begun = await optimizer.call(begin, timeout_s=PATIENCE_S)
    number, trial_id = begun.trial_number, begun.trial_id  # type: ignore[union-attr]
    for _ in range(2):
        await lapse(optimizer)
    [given_up] = await optimizer.store.trials("job")
    assert given_up.outcome is Outcome.INTERRUPTED
    journal.keep(report(1.0, number=number, trial_id=trial_id, metric=0.95))
    finish = FinishTrial(trial_number=number, trial_id=trial_id, outcome=Outcome.CONVERGED, is_journalled=True)
    journal.keep(kept(finish))
    await flushed(journal, optimizer)
    [row] = await optimizer.store.trials("job")
    assert row.late_outcome is Outcome.CONVERGED


async def lapse(optimizer: ReachableOptimizer) -> None:
    from datetime import timedelta

    from bso.service.leases import expiry_of

    optimizer.now += timedelta(days=8)
    await optimizer.engine.execute([expiry_of(lease) for lease in await optimizer.store.lapsed_leases()])


async def test_what_a_deleted_job_refuses_is_set_aside_with_the_reason(
    tmp_path: Path, journal: Journal, optimizer: ReachableOptimizer
) -> None:
    await register(optimizer)
    delete = Request(command_id=new_command_id(), job_id="job", command=DeleteJob())
    await optimizer.call(delete, timeout_s=PATIENCE_S)
    unregistered(journal, training="a")
    done = await flushed(journal, optimizer)
    assert (done.delivered, done.set_aside, done.obstacle) == (0, 4, None)
    [found] = contents(tmp_path)
    reasons = [record["reason"] for record in found.set_aside]
    assert reasons[0].startswith("unknown_job")
    assert all(reason.startswith("its trial was not registered: unknown_job") for reason in reasons[1:])
    assert drop(journal.folder) == 4


async def test_where_nobody_answers_or_the_login_is_refused_everything_stays(
    tmp_path: Path, journal: Journal, optimizer: ReachableOptimizer
) -> None:
    class Refusing(ReachableOptimizer):
        async def call(self, request: Request, *, timeout_s: float) -> Reply:
            raise Misconfigured("the broker refuses this login")

    unregistered(journal, training="a")
    optimizer.is_away = True
    away = await flushed(journal, optimizer)
    refused = await flush(journal.folder, Refusing(), timeout_s=PATIENCE_S)
    assert "nobody answers" in str(away.obstacle)
    assert isinstance(refused.obstacle, Misconfigured)
    assert len(contents(tmp_path)[0].letters) == 4


async def test_what_the_transport_refuses_is_set_aside_and_the_rest_is_delivered(tmp_path: Path) -> None:
    class RefusesTheFirst(ReachableOptimizer):
        async def call(self, request: Request, *, timeout_s: float) -> Reply:
            if isinstance(request.command, ReportEpoch) and request.command.epoch == 1.0:
                raise Rejected("a message may have at most 64 bytes")
            return await super().call(request, timeout_s=timeout_s)

    optimizer = RefusesTheFirst()
    optimizer.problem = Problem(type=KEPT, title="Kept", detail="later", is_retryable=True)
    for epoch in (1.0, 2.0):
        journal = Journal(tmp_path, HERE, "job")
        journal.keep(report(epoch))
        journal.close()
    done = await flushed(journal, optimizer)
    assert (done.delivered, done.set_aside, done.obstacle) == (1, 1, None)
    [found] = contents(tmp_path)
    assert [record["reason"] for record in found.set_aside] == ["a message may have at most 64 bytes"]


async def test_what_this_release_cannot_read_is_set_aside_and_the_rest_is_delivered(
    tmp_path: Path, journal: Journal, optimizer: ReachableOptimizer
) -> None:
    letters = [report(epoch) for epoch in (1.0, 2.0)]
    for letter in letters:
        journal.keep(letter)
    [path] = journal.folder.glob("*.jsonl")
    unreadable, readable = path.read_bytes().splitlines()
    body = unreadable.partition(b" ")[2].replace(b'"epoch":1.0', b'"epoch":"one"')
    path.write_bytes(b"%08x %s\n%s\n" % (zlib.crc32(body), body, readable))
    optimizer.problem = Problem(type=KEPT, title="Kept", detail="later", is_retryable=True)
    done = await flushed(journal, optimizer)
    assert (done.delivered, done.obstacle) == (1, None)
    assert not path.exists()
    [found] = contents(tmp_path)
    assert "line 1 of 00000001.jsonl cannot be read by this release" in found.set_aside[0]["reason"]
    assert drop(journal.folder) == 1


async def test_what_the_optimizer_keeps_itself_is_delivered(journal: Journal, optimizer: ReachableOptimizer) -> None:
    optimizer.problem = Problem(type=KEPT, title="Kept", detail="later", is_retryable=True)
    journal.keep(report(1.0))
    assert (await flushed(journal, optimizer)).delivered == 1


async def test_a_delivery_waits_for_another_one(journal: Journal, optimizer: ReachableOptimizer) -> None:
    optimizer.problem = Problem(type=KEPT, title="Kept", detail="later", is_retryable=True)
    journal.keep(report(1.0))
    journal.close()
    lock = FileLock(journal.folder / "flush.lock")
    with lock:
        asyncio.get_running_loop().call_later(0.2, lock.release)
        done = await flush(journal.folder, optimizer, timeout_s=PATIENCE_S)
    assert done.delivered == 1


async def test_where_another_process_is_frozen_all_but_the_file_in_its_hands_is_delivered(
    tmp_path: Path, optimizer: ReachableOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    optimizer.problem = Problem(type=KEPT, title="Kept", detail="later", is_retryable=True)
    journals = [Journal(tmp_path, HERE, "job") for _ in range(2)]
    for epoch, journal in enumerate(journals, start=1):
        journal.keep(report(float(epoch)))
    for journal in journals:
        journal.close()
    folder = journals[0].folder
    with FileLock(folder / "flush.lock"), FileLock(folder / "00000001.lock"):
        done = await flush(folder, optimizer, timeout_s=0.3)
        assert (done.delivered, done.obstacle) == (1, None)
        assert [request.command.epoch for request in optimizer.requests] == [2.0]  # type: ignore[union-attr]
    assert str(folder / "flush.lock") in caplog.text
    assert left_in(folder) == [1.0]


async def test_a_bug_in_one_kept_command_does_not_keep_the_others(journal: Journal) -> None:
    class Broken(ReachableOptimizer):
        async def call(self, request: Request, *, timeout_s: float) -> Reply:
            if isinstance(request.command, ReportEpoch) and request.command.epoch == 1.0:
                raise ZeroDivisionError
            return Problem(type=KEPT, title="Kept", detail="later", is_retryable=True)

    for epoch in (1.0, 2.0):
        journal.keep(report(epoch))
    done = await flushed(journal, Broken())
    assert (done.delivered, done.set_aside) == (1, 1)
