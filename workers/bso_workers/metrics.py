"""What a worker counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from bso.schema.codec import COMMANDS

REASONS = (
    "malformed",
    "unsupported_schema",
    "no_user_id",
    "forged_reply_address",
    "parked_by_unknown_login",
    "foreign_binding",
    "too_large",
    "poison",
    "park_limit",
)
"""Why commands are set aside."""
PARTS = ("intake", "outbox", "relay", "reaper", "recovery", "readiness")
"""The loops that go on after an unforeseen error."""
RESULTS = ("decided", "repeated", "problem", "poison")
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_LATENCIES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """All counters of one worker, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.commands = Counter(
            "bso_commands",
            "Commands answered, by type and by result: decided, repeated (answered before), problem (refused), poison.",
            ["type", "result"],
            registry=self.registry,
        )
        self.batch_size = Histogram(
            "bso_batch_commands",
            "Commands of one batch; those of a job that another worker holds come again.",
            buckets=_BATCH_SIZES,
            registry=self.registry,
        )
        self.decision_seconds = Histogram(
            "bso_batch_seconds",
            "From taking a batch to having recorded its decisions.",
            buckets=_LATENCIES_S,
            registry=self.registry,
        )
        self.dead_letters = Counter(
            "bso_dead_letters",
            f"Commands set aside, by reason: {', '.join(REASONS)}.",
            ["reason"],
            registry=self.registry,
        )
        for reason in REASONS:  # an increase is seen only of a series that was there before
            self.dead_letters.labels(reason)
        for command_type in COMMANDS:
            for result in RESULTS:
                self.commands.labels(command_type, result)
        self.events_published = Counter(
            "bso_events_published", "Events published right after their decision.", registry=self.registry
        )
        self.events_relayed = Counter(
            "bso_events_relayed", "Events that a relay published later.", registry=self.registry
        )
        self.leases_reaped = Counter(
            "bso_leases_reaped", "Lapsed leases expired by this worker.", registry=self.registry
        )
        self.unsent_replies = Counter(
            "bso_unsent_replies", "Replies that could not be sent; their commands come again.", registry=self.registry
        )
        self.database_retries = Counter(
            "bso_database_retries",
            "Transactions tried again after a conflict or a lost connection.",
            registry=self.registry,
        )
        self.pauses = Counter(
            "bso_pauses", "How often consuming stopped because the database was away.", registry=self.registry
        )
        self.attention_needed = Counter(
            "bso_attention_needed",
            "Recurrences that ended without a model, at least the third in a row of their job.",
            registry=self.registry,
        )
        self.parked_jobs = Gauge(
            "bso_parked_jobs",
            "Jobs in trouble, as far as this worker knows: their commands wait, all other jobs go on.",
            registry=self.registry,
        )
        self.parks = Counter(
            "bso_job_parks", "How often a job was found in trouble, also the same one again.", registry=self.registry
        )
        self.parked_commands = Counter(
            "bso_parked_commands",
            "Commands handed to the broker's parking queues, also the same one again.",
            registry=self.registry,
        )
        self.unforeseen_errors = Counter(
            "bso_unforeseen_errors",
            f"Errors that nobody foresaw, by the part that goes on after them: {', '.join(PARTS)}.",
            ["part"],
            registry=self.registry,
        )
        for part in PARTS:
            self.unforeseen_errors.labels(part)
        self.ready = Gauge("bso_ready", "1 while commands are taken and can be decided.", registry=self.registry)
