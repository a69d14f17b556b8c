"""Thousands of trainings that hardly ever report: what they cost broker and workers, and how they outlive a restart."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.benchmarks.crowd.crowd import Crowd
from tests.benchmarks.crowd.outage import strike
from tests.benchmarks.crowd.wholes import Wholes
from tests.benchmarks.figures import Figure, Figures
from tests.benchmarks.laboratory import Laboratory, pid_of, run
from tests.benchmarks.machine import Elapsed, Stopwatch, cpu_of_tree_s, files_of_tree, memory_of_tree
from tools.private_servers import RabbitMQ

TRAININGS = 2000
WHOLE_TRAININGS = 40
EPOCH_S = 20.0
"""From one epoch of a whole training to the next."""

SHORT_LEASE_S = 60.0
LEASE_S = 600.0
"""That of workers by default."""

RENEWED_EVERY_S = 175.0
"""The mean interval of leases of 600 s."""

INTERVAL_S = SHORT_LEASE_S / 3
"""After which a training renews such a lease."""

WINDOW_S = 60
"""At least an interval, so that all trainings renew such a lease in it."""

SETTLING_S = 20.0
"""After many connections at once, the broker collects garbage, and clients load the last of their modules."""

SERVERS = ("broker", "worker", "database")


@dataclass(frozen=True, slots=True, kw_only=True)
class Idleness:
    """What a while took in which trainings only renewed their leases."""

    elapsed: Elapsed
    renewals: int

    @property
    def renewals_per_s(self) -> float:
        """Of all trainings."""
        return self.renewals / self.elapsed.wall_s

    def cpu_us_per_s(self, server: str) -> float:
        """CPU time of a server per second [us]."""
        return self.elapsed.others_s[server] / self.elapsed.wall_s * 1e6


class Scene:
    """A broker that may go down, a database, and a worker; both restart."""

    def __init__(self, laboratory: Laboratory, rabbitmq: RabbitMQ) -> None:
        self.laboratory = laboratory
        self.rabbitmq = rabbitmq
        self.amqp_url, self.database_url = rabbitmq.create_vhost(), laboratory.new_database()
        self.start_worker(lease_s=LEASE_S)

    def start_worker(self, *, lease_s: float) -> None:
        """Start a worker that grants such leases."""
        worker = self.laboratory.start_worker(amqp_url=self.amqp_url, database_url=self.database_url, lease_s=lease_s)
        self.worker = worker.ready()

    def grant(self, crowd: Crowd, *, lease_s: float) -> None:
        """Let another worker take over, and wait until every training has a lease of that length."""
        self.worker.stop()
        self.start_worker(lease_s=lease_s)
        crowd.until(lambda known: all(one.lease_s == lease_s for one in known.members), timeout_s=LEASE_S)

    def cut_off(self) -> None:
        """Close all connections, as a load balancer does or a node of a cluster that fails: the broker is there."""
        self.rabbitmq.management.close_connections(self.amqp_url)

    def idleness(self, crowd: Crowd | None) -> Idleness:
        """What a while takes in which nobody of the crowd reports."""
        pids = {"worker": self.worker.process.pid, "database": pid_of(self.laboratory.mariadb)}
        before = crowd.known().renewals if crowd else 0
        with Stopwatch(broker=pid_of(self.rabbitmq), **pids) as watch:
            time.sleep(max(INTERVAL_S, self.laboratory.effort.of(WINDOW_S)))
        return Idleness(elapsed=watch.elapsed, renewals=(crowd.known().renewals if crowd else 0) - before)


def measure(laboratory: Laboratory) -> list[Figure]:
    """Memory, files and CPU per training, CPU per renewal, and three outages of the broker; audited at the end.

    Each training is a whole client with a connection of its own, hundreds of them in a process. Beside them are
    trainings that train, in processes of their own; what those take of the servers is measured before, and subtracted.
    """
    figures = Figures(benchmark="many")
    effort = laboratory.effort
    with RabbitMQ() as rabbitmq:
        scene = Scene(laboratory, rabbitmq)
        amqp_url, folder = scene.amqp_url, laboratory.folder
        with Wholes(effort.of(WHOLE_TRAININGS), amqp_url=amqp_url, folder=folder, epoch_s=EPOCH_S) as wholes:
            alone = scene.idleness(None)
            with _opened(scene, effort.of(TRAININGS), figures) as crowd:
                idle = scene.idleness(crowd)
                _outage(scene, crowd, "cut off", scene.cut_off, figures, until_renewed=False)
                _outage(scene, crowd, "stopped", rabbitmq.stop, figures, until_renewed=False)
                scene.grant(crowd, lease_s=SHORT_LEASE_S)
                busy = scene.idleness(crowd)
                _report_idleness(crowd.size, alone, idle, busy, figures)
                _outage(scene, crowd, "killed", rabbitmq.kill, figures, until_renewed=True)
                reports = run(crowd.audit(scene.database_url))
                wholes.stop()
                evaluations = run(wholes.audit(scene.database_url))
    laboratory.say(
        f"  {effort.of(TRAININGS)} trainings audited: each has its trial, {reports} reports recorded once; "
        f"{effort.of(WHOLE_TRAININGS)} whole trainings: {evaluations} evaluations recorded once"
    )
    return figures.found


@contextmanager
def _opened(scene: Scene, count: int, figures: Figures) -> Iterator[Crowd]:
    broker = pid_of(scene.rabbitmq)
    cpu_s, memory, files = cpu_of_tree_s(broker), memory_of_tree(broker), files_of_tree(broker)
    with Crowd(count, amqp_url=scene.amqp_url, folder=scene.laboratory.folder) as crowd:
        opened_s = cpu_of_tree_s(broker) - cpu_s
        time.sleep(SETTLING_S)
        case = f"{crowd.size} trainings"
        made_s = crowd.known().made_s
        for quantity, unit, value in (
            ("broker memory per training", "KB", (memory_of_tree(broker) - memory) / count / 1e3),
            ("broker files per training", "", (files_of_tree(broker) - files) / count),
            ("broker CPU to begin", "ms", opened_s / count * 1e3),
            ("client memory per training", "KB", crowd.memory() / count / 1e3),
            ("client CPU to begin", "ms", crowd.cpu_s() / count * 1e3),
            ("connections per training", "", len(made_s) / count),
        ):
            figures.add(case, quantity, unit, [value])
            scene.laboratory.say(f"  {case}: {quantity}: {value:.1f} {unit}")
        yield crowd


def _report_idleness(count: int, alone: Idleness, idle: Idleness, busy: Idleness, figures: Figures) -> None:
    """Two loads that differ in their renewals only say what one costs, and what remains without any."""
    more = busy.renewals_per_s - idle.renewals_per_s
    figures.add("leases of 60 s", "renewals", "1/s", [busy.renewals_per_s])
    figures.add("leases of 600 s", "renewals", "1/s", [idle.renewals_per_s])
    for server in SERVERS:
        renewal_us = (busy.cpu_us_per_s(server) - idle.cpu_us_per_s(server)) / more
        without_us = idle.cpu_us_per_s(server) - alone.cpu_us_per_s(server) - idle.renewals_per_s * renewal_us
        figures.add("a renewal", f"{server} CPU", "us", [renewal_us])
        idle_us = without_us / count
        figures.add("an idle training", f"{server} CPU per second, without renewals", "us", [idle_us])
        figures.add("an idle training", f"{server} CPU per second", "us", [idle_us + renewal_us / RENEWED_EVERY_S])


def _outage(
    scene: Scene, crowd: Crowd, how: str, end: Callable[[], object], figures: Figures, *, until_renewed: bool
) -> None:
    case = f"broker {how} under {crowd.size} trainings"
    recovery = strike(crowd, scene.rabbitmq, end, until_renewed=until_renewed)
    scene.laboratory.say(f"  {case}: {recovery}")
    figures.add(case, "down", "s", [recovery.down_s])
    figures.add(case, "until all are connected", "s", [recovery.connected_s])
    figures.add(case, "until the report of each is answered", "s", [recovery.answered_s])
    if recovery.renewed_s is not None:
        figures.add(case, "until each lease is renewed", "s", [recovery.renewed_s])
    figures.add(case, "most connections in a second", "", [recovery.per_second])
    figures.add(case, "attempts that failed with the broker back", "", [recovery.failures])
    figures.add(case, "broker CPU to come back, per training", "ms", [recovery.broker_cpu_s / crowd.size * 1e3])
