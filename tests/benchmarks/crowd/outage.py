"""A broker that goes down under a crowd of trainings, and how they come back."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.benchmarks.crowd.crowd import Crowd, Known
from tests.benchmarks.machine import cpu_of_tree_s
from tools.private_servers import RabbitMQ

OUTAGE_S = 10.0
"""How long the broker is down before it is started again; it needs some seconds to start."""

RECOVERY_S = 600.0
"""The last resort against hanging."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """How a crowd came back. Times count from the moment at which the first training was connected again [s]."""

    down_s: float
    """How long nobody was connected."""

    connected_s: float
    """Until all were."""

    answered_s: float
    """Until the report that each training made meanwhile was answered."""

    renewed_s: float | None
    """Until each lease was renewed; None: nobody waited for it."""

    per_second: int
    """The most connections within a second."""

    failures: int
    """Attempts to connect that failed although the broker was back."""

    broker_cpu_s: float
    """The broker's CPU time, that of its start included."""


def strike(
    crowd: Crowd, rabbitmq: RabbitMQ, end: Callable[[], object], *, until_renewed: bool, report_within_s: float = 5.0
) -> Recovery:
    """End the broker, let every training report while it is down, start it again, and wait until all is as before.

    ``end`` is the broker's stop or kill.
    """
    pid = rabbitmq.processes[0]
    cpu_s = cpu_of_tree_s(pid)
    began_s = time.monotonic()
    end()
    reporting_s = time.monotonic()
    crowd.report(within_s=report_within_s)
    while time.monotonic() < reporting_s + OUTAGE_S:
        time.sleep(0.1)
    rabbitmq.start()

    def is_over(known: Known) -> bool:
        members = known.members
        return (
            known.connected == crowd.size
            and all(member.answered == member.reports for member in members)
            and (not until_renewed or all(member.renewed_s > began_s for member in members))
        )

    known = crowd.until(is_over, timeout_s=RECOVERY_S)
    took_cpu_s = cpu_of_tree_s(rabbitmq.processes[0]) - (cpu_s if rabbitmq.processes[0] == pid else 0.0)
    made_s = known.made_s[bisect_left(known.made_s, began_s) :]
    first_s = made_s[0]
    failed_s = known.failed_s[bisect_left(known.failed_s, first_s) :]
    return Recovery(
        down_s=first_s - began_s,
        connected_s=made_s[-1] - first_s,
        answered_s=max(member.answered_s for member in known.members) - first_s,
        renewed_s=max(member.renewed_s for member in known.members) - first_s if until_renewed else None,
        per_second=most_within(made_s, 1.0),
        failures=len(failed_s),
        broker_cpu_s=took_cpu_s,
    )


def most_within(times_s: Sequence[float], span_s: float) -> int:
    """The largest number of moments, of a sorted sequence, that lie within so many seconds."""
    return max((bisect_right(times_s, time_s + span_s) - i for i, time_s in enumerate(times_s)), default=0)
