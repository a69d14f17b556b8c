"""A command on its whole way, from its bytes in a client to the bytes of its reply."""

from collections.abc import Callable, Sequence
from functools import partial

from bso.schema.codec import decode_reply
from tests.benchmarks.figures import Figure, Figures, percentile
from tests.benchmarks.journeys import Driven, Route
from tests.benchmarks.laboratory import Laboratory, pid_of, run
from tests.benchmarks.lanes import check_judged, open_lanes

JOBS = 20
CALLS = {1: 150, 64: 2560}
"""Calls per repetition, by how many are under way at once."""


def measure(laboratory: Laboratory) -> list[Figure]:
    """Decisions per second, latencies and CPU time per decision, with 1 and with 64 commands under way."""
    figures = Figures(benchmark="rpc")
    echo_url, amqp_url = laboratory.rabbitmq.create_vhost(), laboratory.rabbitmq.create_vhost()
    database_url = laboratory.new_database()
    servers = {"broker": [pid_of(laboratory.rabbitmq)], "database": [pid_of(laboratory.mariadb)]}
    echo = laboratory.start_program("tests.benchmarks.echo", amqp_url=echo_url)
    (worker,) = laboratory.start_workers(1, amqp_url=amqp_url, database_url=database_url)
    floor = Route(amqp_url=echo_url, pids={"worker": [echo.process.pid], **servers})
    full = Route(amqp_url=amqp_url, pids={"worker": [worker.process.pid], **servers}, database_url=database_url)
    run(_measure(laboratory, figures, full, floor))
    return figures.found


async def _measure(laboratory: Laboratory, figures: Figures, full: Route, floor: Route) -> None:
    async with full.opened() as optimizer, floor.opened() as echo:
        lanes = await open_lanes(optimizer.ask, max(CALLS), jobs=JOBS)
        for in_flight, usual in CALLS.items():
            calls = laboratory.effort.of(usual)
            decided, echoed = [], []
            for _ in range(laboratory.effort.repetitions):
                echoed.append(await echo.drive(lanes[:in_flight], calls))
                decided.append(await optimizer.drive(lanes[:in_flight], calls))
                check_judged([decode_reply(reply) for reply in decided[-1].replies])
            _report(figures, f"{in_flight} in flight", decided, echoed)


def _report(figures: Figures, case: str, decided: Sequence[Driven], echoed: Sequence[Driven]) -> None:
    def add(quantity: str, unit: str, value: Callable[[Driven], float]) -> None:
        mine, floor = [value(one) for one in decided], [value(one) for one in echoed]
        figures.add(case, quantity, unit, mine, peer="echo", peer_values=floor)

    add("decisions", "1/s", lambda one: one.rate)
    add("latency, half", "ms", lambda one: percentile(one.latencies_s, 0.5) * 1e3)
    add("latency, 99 %", "ms", lambda one: percentile(one.latencies_s, 0.99) * 1e3)
    add("client CPU per decision", "us", lambda one: one.cpu_us())
    add("worker CPU per decision", "us", partial(Driven.cpu_us, name="worker"))
    add("broker CPU per decision", "us", partial(Driven.cpu_us, name="broker"))
    figures.add(case, "database CPU per decision", "us", [one.cpu_us("database") for one in decided])
