"""Removals: each takes one defence away, as if it had never been written.

A plugin of pytest: `BSO_TEST_WITHOUT="<attempt>" pytest -p tests.defences.removals <test>` runs a test without the
defence that prevents this attempt, a row of docs/security.md.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from bso.domain import decide, foreign_text
from bso.domain.commands import RegisterJob
from bso.domain.decide import begin, operations, registration
from bso.domain.frozen_values import replace
from bso.domain.rights import Right
from bso.domain.tokens import Token
from bso.service import batch
from bso.service.records import LapsedLease
from bso.storage import connections, handshakes
from bso.storage.unit_of_work import SqlUnitOfWork
from bso.tls import OFF, TlsOptions
from bso_broker import consumer_session, dead_letters, queries, underlay
from bso_broker.dead_letters import SENDER_HEADER
from bso_broker.turns import Turns
from bso_gateway import access
from bso_workers import admission, bootstrap, rates, reaper, settlement, worker
from tools.private_servers import Management, RabbitMQ

VARIABLE = "BSO_TEST_WITHOUT"


class _Changed:
    """Attributes that are replaced by what a function makes of them."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name, self.before = owner, name, getattr(owner, name)

    def by(self, after: Any) -> None:
        setattr(self.owner, self.name, after)


def _nobody_is_refused() -> None:
    _Changed(decide, "refusal").by(lambda *_, **__: None)


class _Everybody(frozenset[str]):
    def __contains__(self, _login: object) -> bool:
        return True


def _everybody_is_a_gateway() -> None:
    made = _Changed(bootstrap, "Admission")
    made.by(lambda **options: made.before(**{**options, "gateways": _Everybody()}))


def _tokens_open_everything() -> None:
    _Changed(access.Access, "_refuse_many_failures").by(lambda *_: None)
    _Changed(Token, "covers").by(lambda *_: True)


def _trials_need_no_trial_id() -> None:
    _Changed(decide, "_meant_for_another").by(lambda *_: None)


def _recorded_answers_are_everybodys() -> None:
    _Changed(batch, "withheld").by(lambda *_, **__: None)


def _expiries_have_ids_that_follow_from_the_lease() -> None:
    expiry = _Changed(reaper, "expiry_of")

    def changed(lapsed: LapsedLease) -> Any:
        command_id = uuid.uuid5(uuid.UUID(lapsed.trial_id), lapsed.lease_expires_at.isoformat())
        return replace(expiry.before(lapsed), command_id=str(command_id))

    expiry.by(changed)


def _deleted_names_are_free() -> None:
    refusal = _Changed(decide, "refusal")

    def changed(job: Any, command: Any, **context: Any) -> Any:
        is_free = isinstance(command, RegisterJob) and job.is_deleted
        return refusal.before(replace(job, owner=None) if is_free else job, command, **context)

    refusal.by(changed)


def _everybody_inherits() -> None:
    lacking = _Changed(decide, "lacking")

    def changed(job: Any, right: Any, **context: Any) -> Any:
        return None if right is Right.READ else lacking.before(job, right, **context)

    lacking.by(changed)


def _the_broker_believes_every_user_id() -> None:
    request = _Changed(Management, "request")

    def changed(self: Management, method: str, path: str, body: Any = None) -> Any:
        if method == "PUT" and path.startswith("users/"):
            body = {**body, "tags": "impersonator"}
        return request.before(self, method, path, body)

    request.by(changed)


def _logins_are_not_required() -> None:
    for name in ("Admission", "QueryAnswers"):
        made = _Changed(bootstrap, name)
        made.by(lambda before=made.before, **fields: before(**{**fields, "requires_user_id": False}))


def _everybody_is_believed() -> None:
    _Changed(admission, "sender_of").by(lambda delivery, **_: delivery.headers.get(SENDER_HEADER) or delivery.user_id)


def _dead_letters_forget_nobody() -> None:
    header = _Changed(dead_letters, "sender_header")
    header.by(lambda sender: {} if sender is None else header.before(sender))


def _any_reply_address_is_good() -> None:
    for module in (admission, queries):
        _Changed(module, "is_reply_address").by(lambda *_: True)


def _replies_to_nobody_look_like_others() -> None:
    for module in (settlement, queries):
        _Changed(module, "reply_id").by(lambda correlation_id, _: correlation_id or "")


def _logins_do_not_take_turns() -> None:
    of = _Changed(Turns, "of")
    of.by(lambda self, _: of.before(self, None))


def _every_topic_is_permitted() -> None:
    permit = _Changed(Management, "permit_topics")
    permit.by(lambda self, name, url, **patterns: permit.before(self, name, url, **{**patterns, "read": ".*"}))


def _everything_is_permitted() -> None:
    request = _Changed(Management, "request")

    def changed(self: Management, method: str, path: str, body: Any = None) -> Any:
        if method == "POST" and "permissions" in body:
            everything = {"configure": ".*", "write": ".*", "read": ".*"}
            body = {**body, "permissions": [{**one, **everything} for one in body["permissions"]]}
        return request.before(self, method, path, body)

    request.by(changed)


def _everything_is_read() -> None:
    _Changed(consumer_session, "MAX_MESSAGE_BYTES").by(2**31)


def _any_number_of_batch_sizes() -> None:
    _Changed(registration, "_limited").by(lambda spec, *_: spec)


def _any_number_of_versions() -> None:
    for module in (registration, begin):
        _Changed(module, "outgrown").by(lambda *_, **__: None)


def _any_number_of_power_profiles() -> None:
    report = _Changed(decide, "report_power_profile")
    report.by(lambda job, command, facts: report.before(job, command, replace(facts, power_profiles={})))


def _no_job_goes_alone() -> None:
    _Changed(worker, "_COSTLY_S").by(float("inf"))
    _Changed(worker.CommandWorker, "_has_its_share").by(lambda *_: False)
    patience = _Changed(bootstrap, "Patience")
    patience.by(lambda **fields: patience.before(**fields, deciding_s=float("inf")))
    _Changed(batch, "_LONG_S").by(float("inf"))


def _any_number_of_jobs() -> None:
    for module in (registration, operations):
        _Changed(module, "one_job_too_many").by(lambda *_: None)


def _nobody_counts_alone() -> None:
    places = _Changed(SqlUnitOfWork, "_hold_places")

    async def changed(self: SqlUnitOfWork, ids: Sequence[str]) -> None:
        if not ids[0].startswith("~"):
            await places.before(self, ids)

    places.by(changed)


def _any_rate() -> None:
    _Changed(rates.Rates, "passed_by").by(lambda *_: None)


def _all_dead_letters_are_kept() -> None:
    _Changed(rates.LetterRoom, "has_room_for").by(lambda *_: True)


def _anything_is_declared() -> None:
    run = _Changed(subprocess, "run")

    def changed(command: Any, **options: Any) -> Any:
        done = run.before(command, **options)
        if "make-secrets" in str(command):
            file = Path(command[-1]) / "rabbitmq_logins.json"
            logins = json.loads(file.read_text(encoding="utf-8"))
            file.unlink()
            users = [{**user, "limits": {}} for user in logins["users"]]
            file.write_text(json.dumps({**logins, "users": users, "parameters": []}), encoding="utf-8")
        return done

    run.by(changed)


def _nothing_is_encrypted() -> None:
    _Changed(RabbitMQ, "secured").by(lambda _self, url, **_options: url)


def _the_database_is_reached_in_the_clear() -> None:
    _Changed(connections, "tls_of").by(lambda _: TlsOptions(mode=OFF))


def _no_certificate_is_verified() -> None:
    _without_verification(underlay)


def _any_server_is_the_database() -> None:
    _without_verification(handshakes)


def _without_verification(owner: Any) -> None:
    context = _Changed(owner, "tls_context")

    def changed(options: TlsOptions) -> ssl.SSLContext:
        made: ssl.SSLContext = context.before(options)
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
        return made

    context.by(changed)


def _foreign_text_is_printed_as_it_came() -> None:
    _Changed(foreign_text, "_is_printable").by(lambda _: True)


def _cells_may_be_formulas() -> None:
    _Changed(foreign_text, "_BEGINS_FORMULAS").by("")


REMOVALS: dict[str, Callable[[], None]] = {
    "send a command in another login's name": _the_broker_believes_every_user_id,
    "send one that names no login": _logins_are_not_required,
    "name another login in a header, as workers and operators do": _everybody_is_believed,
    "name somebody else in the envelope, as gateways do (`on_behalf_of`)": _everybody_is_a_gateway,
    "guess a token, or use one for more than it was made for": _tokens_open_everything,
    "report to a trial by its number alone, after a restored backup to another one than is meant": (
        _trials_need_no_trial_id
    ),
    "have an operator requeue a command that names no login, with the operator's rights": _dead_letters_forget_nobody,
    "see, train, change or delete another team's job": _nobody_is_refused,
    "learn a `trial_id` by sending again a `command_id` from an event": _recorded_answers_are_everybodys,
    "keep a trial running for ever, by a command under the `command_id` of its lease's expiry": (
        _expiries_have_ids_that_follow_from_the_lease
    ),
    "take a job over by deleting it, and registering its name": _deleted_names_are_free,
    "read what another job has learnt by inheriting from it": _everybody_inherits,
    "have an answer sent to another login's queue": _any_reply_address_is_good,
    "have the reply to a message without a login taken for one to another login's command": (
        _replies_to_nobody_look_like_others
    ),
    "receive other teams' live events": _every_topic_is_permitted,
    "read or empty queues, reply in a worker's place, publish events": _everything_is_permitted,
    "stop workers with huge messages": _everything_is_read,
    "slow everybody down with a job of many batch sizes": _any_number_of_batch_sizes,
    "slow everybody down with a job of many versions or hardware kinds": _any_number_of_versions,
    "slow everybody down with a job of many power profiles": _any_number_of_power_profiles,
    "slow everybody down with a job whose decisions are costly": _no_job_goes_alone,
    "keep workers busy with more commands than they can decide": _any_rate,
    "fill the disk with messages that are no commands, or push out others' dead letters by them": (
        _all_dead_letters_are_kept
    ),
    "keep others from seeing their jobs by asking without pause": _logins_do_not_take_turns,
    "fill the database with jobs": _any_number_of_jobs,
    "fill it with jobs that are registered at the same moment": _nobody_counts_alone,
    "fill another login's quota by giving it jobs": _any_number_of_jobs,
    "fill the broker with queues that nobody reads, or with connections": _anything_is_declared,
    "read on the network what others send to the broker, their passwords among it": _nothing_is_encrypted,
    "pose as the broker on the network": _no_certificate_is_verified,
    "read on the network what workers and their database send each other": _the_database_is_reached_in_the_clear,
    "pose as the database on the network": _any_server_is_the_database,
    "draw on an operator's terminal, or forge lines there and in logs, by control characters in a text": (
        _foreign_text_is_printed_as_it_came
    ),
    "have an operator's spreadsheet run a formula": _cells_may_be_formulas,
}
"""How the defence against each attempt is removed."""


def pytest_configure(config: pytest.Config) -> None:
    """Remove the defence that the variable names, before any test is imported."""
    REMOVALS[os.environ[VARIABLE]]()
