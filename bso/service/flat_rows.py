"""Trials as flat rows for other programs: the fields of their parts beside their own."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bso.domain.foreign_text import csv_cell
from bso.domain.hardware import HardwareKind
from bso.domain.trial import Trial
from bso.schema.codec import dump

Row = Mapping[str, Any]


def trial_fields(job_id: str, trial: Trial) -> Row:
    """A trial as one row; ``learning_rate`` is that of its batch size."""
    fields: dict[str, Any] = json.loads(dump(replace(trial, learning_rate=None)))
    del fields["hardware"]
    rate = trial.learning_rate
    fields["learning_rate"] = None if rate is None else rate.at(trial.batch_size)
    return {
        "job_id": job_id,
        **fields,
        "learning_rate_reference": None if rate is None else rate.value,
        "learning_rate_reference_batch_size": None if rate is None else rate.reference_batch_size,
        "learning_rate_rule": None if rate is None else rate.rule,
        **_prefixed("profiled", fields.pop("profiled")),
        **hardware_fields(trial.hardware),
    }


def hardware_fields(hardware: HardwareKind) -> Row:
    """A hardware kind as columns."""
    return _prefixed("hardware", json.loads(dump(hardware)))


def csv_value(value: object) -> object:
    """What stands for a value in comma-separated values: nothing that a spreadsheet would carry out."""
    return json.dumps(value) if isinstance(value, dict | list) else csv_cell(value)


def csv_lines(rows: Sequence[Row], *, with_header: bool) -> str:
    """Rows as comma-separated values (RFC 4180, lines end with LF)."""
    stream = io.StringIO(newline="")
    if rows:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]), lineterminator="\n")
        if with_header:
            writer.writeheader()
        writer.writerows({name: csv_value(value) for name, value in row.items()} for row in rows)
    return stream.getvalue()


def _prefixed(prefix: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}_{name}": value for name, value in fields.items()}
