"""What a training loop pays per epoch: the same loop with the client and without it, epoch by epoch in turn."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from bso.domain.commands import Request
from bso.domain.replies import Reply
from bso_client.transports import Transport, open_transport
from tests.benchmarks.digits import Classifier, split_for, use_one_core
from tests.benchmarks.figures import Figure, Figures
from tests.benchmarks.laboratory import Laboratory
from tests.benchmarks.machine import fdatasync_s
from tests.benchmarks.rows import spread
from tests.benchmarks.trials import EMBEDDED, THROUGH_WORKER, endless_trial

ROUNDS = 20
"""Epochs of each loop, in each repetition."""

EPOCH_S = 0.1
"""Short, so that what the client adds, which does not grow with the epoch, stands out of the machine's noise."""

REFERENCE_EPOCH_S = 10.0
"""An epoch that is short in practice: what the client adds is given as a part of it."""

WITHOUT = "the same epoch without it"

Epoch = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What an epoch takes: time [s], and CPU time of the whole process [s], the client's thread included."""

    time_s: float
    cpu_s: float
    answered_s: float = 0.0  # of the time: until the optimizer has decided and answered
    own_s: float = 0.0  # of the time: what else on_evaluate does


class TimedTransport:
    """Another transport; ``answered_s`` is how long its last answer took, ``held_up_s`` the evaluation it was for."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.answered_s = 0.0
        self.held_up_s = 0.0

    async def start(self) -> None:
        """Start the other one."""
        await self._transport.start()

    async def call(self, request: Request, *, timeout_s: float) -> Reply:
        """The other one's reply, timed."""
        began_s = time.perf_counter()
        try:
            return await self._transport.call(request, timeout_s=timeout_s)
        finally:
            self.answered_s = time.perf_counter() - began_s

    async def close(self) -> None:
        """Close the other one."""
        await self._transport.close()


def measure(laboratory: Laboratory) -> list[Figure]:
    """Medians of epochs with and without the client, the difference, and that as a part of an epoch of 10 s.

    What is added is distinguished: the client's own work, and the time until the optimizer has decided and answered;
    beside it, what a block takes to be on this disk, which a broker and a database each wait for.
    """
    figures = Figures(benchmark="epochs")
    amqp_url = laboratory.crew(1).route.amqp_url
    urls = {EMBEDDED: f"sqlite:///{laboratory.folder}/epochs.sqlite", THROUGH_WORKER: amqp_url}
    found: dict[str, list[Taken]] = {case: [] for case in (WITHOUT, *urls)}
    with use_one_core():
        train = _epoch_of(EPOCH_S * laboratory.effort.share)
        for _ in range(laboratory.effort.repetitions):
            medians = _medians(urls, train, state_dir=str(laboratory.folder), rounds=laboratory.effort.of(ROUNDS))
            for case, taken in medians.items():
                found[case].append(taken)
    synced_ms = fdatasync_s(laboratory.folder, times=100) * 1e3
    figures.add("fdatasync of 4 KiB on the servers' disk", "time", "ms", [synced_ms])
    _note(figures, found.pop(WITHOUT), found, laboratory)
    return figures.found


def _note(figures: Figures, without: list[Taken], found: Mapping[str, list[Taken]], laboratory: Laboratory) -> None:
    without_ms = [taken.time_s * 1e3 for taken in without]
    figures.add("an epoch without the client", "time", "ms", without_ms)
    for case, taken in found.items():
        with_ms = [each.time_s * 1e3 for each in taken]
        figures.add(f"an epoch, {case}", "time", "ms", with_ms, peer=WITHOUT, peer_values=without_ms)
        added_s = [mine.time_s - other.time_s for mine, other in zip(taken, without, strict=True)]
        cpu_s = [mine.cpu_s - other.cpu_s for mine, other in zip(taken, without, strict=True)]
        figures.add(f"added, {case}", "time", "ms", [value * 1e3 for value in added_s])
        figures.add(f"added, {case}", "CPU", "ms", [value * 1e3 for value in cpu_s])
        answered_ms = [each.answered_s * 1e3 for each in taken]
        own_ms = [each.own_s * 1e3 for each in taken]
        figures.add(f"added, {case}", "until answered", "ms", answered_ms)
        figures.add(f"added, {case}", "the client's own", "ms", own_ms)
        parts = [value / REFERENCE_EPOCH_S * 100 for value in added_s]
        figures.add(f"added, {case}", "time, part of 10 s", "%", parts)
        about = {"path": "client", "case": f"an epoch, {case}", "in_flight": 1, "workers": int(case == THROUGH_WORKER)}
        added_ms = [value * 1e3 for value in added_s]
        laboratory.rows.append({**about, "added_ms": spread(added_ms), "own_ms": spread(own_ms)})


def _medians(urls: Mapping[str, str], train: Epoch, *, state_dir: str, rounds: int) -> dict[str, Taken]:
    """The median epoch of each loop: one epoch of each in turn, so that what disturbs the machine disturbs all."""
    taken: dict[str, list[Taken]] = {case: [] for case in (WITHOUT, *urls)}
    with ExitStack() as stack:
        loops = {WITHOUT: train}
        timed = {case: TimedTransport(open_transport(url)) for case, url in urls.items()}
        for case, transport in timed.items():
            loops[case] = stack.enter_context(_with_client(train, transport, urls[case], state_dir=state_dir))
        for _ in range(rounds):
            for case, epoch in loops.items():
                one = _taken_by(epoch)
                taken[case].append(one if case not in timed else _separated(one, timed[case]))
    return {case: _median(values) for case, values in taken.items()}


def _separated(taken: Taken, transport: TimedTransport) -> Taken:
    answered_s = transport.answered_s
    return replace(taken, answered_s=answered_s, own_s=transport.held_up_s - answered_s)


def _taken_by(epoch: Epoch) -> Taken:
    began_s, cpu_before_s = time.perf_counter(), time.process_time()
    epoch()
    return Taken(time_s=time.perf_counter() - began_s, cpu_s=time.process_time() - cpu_before_s)


def _median(taken: list[Taken]) -> Taken:
    return Taken(
        time_s=statistics.median(each.time_s for each in taken),
        cpu_s=statistics.median(each.cpu_s for each in taken),
        answered_s=statistics.median(each.answered_s for each in taken),
        own_s=statistics.median(each.own_s for each in taken),
    )


@contextmanager
def _with_client(train: Epoch, transport: TimedTransport, url: str, *, state_dir: str) -> Iterator[Epoch]:
    """An epoch that is measured, and reported to an optimizer that never stops it."""
    with endless_trial("bench-epochs", url, state_dir=state_dir, transport=transport) as trial:

        def epoch() -> None:
            train()
            began_s = time.perf_counter()
            trial.on_evaluate(0.1)
            transport.held_up_s = time.perf_counter() - began_s

        epoch()
        yield epoch


def _epoch_of(seconds: float) -> Epoch:
    """A training that takes about so long, always the same work."""
    split = split_for(seed=1, recurrence=1)
    model = Classifier(batch_size=128, seed=1)
    model.train_epoch(split)
    began_s = time.perf_counter()
    model.train_epoch(split)
    repeats = max(1, round(seconds / (time.perf_counter() - began_s)))

    def train() -> None:
        for _ in range(repeats):
            model.train_epoch(split)

    return train
