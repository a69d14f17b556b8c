"""What a worker counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from bso.schema.codec import COMMANDS
from bso.service.errors import NotAsExpected
from bso.service.ports import OptimisticStore
from bso.service.records import ChangeSet, Expected

REASONS = (
    "malformed",
    "unsupported_schema",
    "no_user_id",
    "forged_reply_address",
    "forged_user",
    "parked_by_unknown_login",
    "foreign_binding",
    "too_large",
    "poison",
    "park_limit",
    "over_quota",
    "not_kept",
)
"""Why messages are set aside; ``not_kept``: too many of their login were, and these are gone."""
PARTS = ("intake", "outbox", "relay", "reaper", "recovery", "readiness", "savings")
"""The loops that go on after an unforeseen error."""
RESULTS = ("decided", "repeated", "problem", "poison")
OUTCOMES = ("recorded", "refused")
_OF_ENERGY = ("job_id", "energy")
ENERGIES = ("measured", "assumed")
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_LATENCIES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """All counters of one worker, in a registry of their own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        counter = partial(Counter, registry=registry)
        self.commands = counter(
            "bso_commands",
            "Commands answered, by type and by result: decided, repeated (answered before), problem (refused), poison.",
            ["type", "result"],
        )
        reasons = f"Messages set aside, by reason: {', '.join(REASONS)} (gone)."
        self.dead_letters = counter("bso_dead_letters", reasons, ["reason"])
        parts = f"Errors that nobody foresaw, by the part that goes on after them: {', '.join(PARTS)}."
        self.unforeseen_errors = counter("bso_unforeseen_errors", parts, ["part"])
        optimistic = "Batches decided without reading, by what the database did: recorded, or refused (decided again)."
        self.optimistic_batches = counter("bso_optimistic_batches", optimistic, ["outcome"])
        self._begin_at_zero()
        self.batch_size = Histogram(
            "bso_batch_commands",
            "Commands of one batch; those of a job that another worker holds come again.",
            buckets=_BATCH_SIZES,
            registry=registry,
        )
        seconds = "From taking a batch to having recorded its decisions."
        self.decision_seconds = Histogram("bso_batch_seconds", seconds, buckets=_LATENCIES_S, registry=registry)
        self.events_published = counter("bso_events_published", "Events published right after their decision.")
        self.events_relayed = counter("bso_events_relayed", "Events that a relay published later.")
        self.leases_reaped = counter("bso_leases_reaped", "Lapsed leases expired by this worker.")
        unsent = "Replies that could not be sent; their commands come again."
        self.unsent_replies = counter("bso_unsent_replies", unsent)
        retried = "Transactions tried again after a conflict or a lost connection."
        self.database_retries = counter("bso_database_retries", retried)
        self.pauses = counter("bso_pauses", "How often consuming stopped because the database was away.")
        without_model = "Recurrences that ended without a model, at least the third in a row of their job."
        self.attention_needed = counter("bso_attention_needed", without_model)
        troubled = "Jobs in trouble, as far as this worker knows: their commands wait, all other jobs go on."
        self.parked_jobs = Gauge("bso_parked_jobs", troubled, registry=registry)
        self.parks = counter("bso_job_parks", "How often a job was found in trouble, also the same one again.")
        handed = "Commands of jobs in trouble handed to the broker's parking queues, also the same one again."
        self.parked_commands = counter("bso_parked_commands", handed)
        over = "Commands that would have passed a limit of their login's quota: refused, or to be sent again later."
        self.over_quota = counter("bso_over_quota", over, ["login", "limit"])
        self.ready = Gauge("bso_ready", "1 while commands are taken and can be decided.", registry=registry)

        gauge = partial(Gauge, registry=registry)
        self.job_models = gauge("bso_job_models", "Trainings of the job that reached its target.", ["job_id"])
        self.job_trials = gauge("bso_job_trials", "Trials of the job that have ended.", ["job_id"])
        saved = "Saved by the job against its default batch size at full power, all trials counted; below 0: lost."
        self.job_energy = gauge("bso_job_saved_energy_joules", f"Energy [J], measured or assumed. {saved}", _OF_ENERGY)
        self.job_energy_error = gauge("bso_job_saved_energy_error_joules", "Its standard error [J].", _OF_ENERGY)
        self.job_time = gauge("bso_job_saved_seconds", f"Time [s]. {saved}", ["job_id"])
        self.job_time_error = gauge("bso_job_saved_error_seconds", "Its standard error [s].", ["job_id"])

    def forget_job(self, job_id: str) -> None:
        """Drop all series of a job."""
        for gauge in (self.job_models, self.job_trials, self.job_time, self.job_time_error):
            gauge.remove(job_id)
        for gauge in (self.job_energy, self.job_energy_error):
            for energy in ENERGIES:
                gauge.remove(job_id, energy)

    def _begin_at_zero(self) -> None:
        """Make all labelled series: an increase is seen only of a series that was there before."""
        for reason in REASONS:
            self.dead_letters.labels(reason)
        for command_type, result in product(COMMANDS, RESULTS):
            self.commands.labels(command_type, result)
        for part in PARTS:
            self.unforeseen_errors.labels(part)
        for outcome in OUTCOMES:
            self.optimistic_batches.labels(outcome)


class CountedStore:
    """An optimistic store: what it records and refuses is counted."""

    def __init__(self, store: OptimisticStore, metrics: Metrics) -> None:
        self._store = store
        self._batches = metrics.optimistic_batches

    async def commit_if(self, expected: Expected, changes: ChangeSet, *, above: int) -> Mapping[tuple[str, int], int]:
        """Save changes if the store holds what is expected. Raises NotAsExpected."""
        try:
            event_ids = await self._store.commit_if(expected, changes, above=above)
        except NotAsExpected:
            self._batches.labels("refused").inc()
            raise
        self._batches.labels("recorded").inc()
        return event_ids
