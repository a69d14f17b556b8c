"""What OpenAPI says of a job's specification in a request, for a client that knows nothing else of this optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import MISSING, fields
from typing import Any

from bso.domain.job_spec import MAX_BATCH_SIZES, MAX_VERSION_LENGTH, SPEC_BOUNDS, JobSpec
from bso.domain.policies import default_policy
from bso.schema.codec import dump

_ABOUT = (
    "What the user sets. A new job needs batch_sizes and default_batch_size. What is left out has the value that its "
    "field names for a new job, and stays as it is for a known one: send only what is meant to be set."
)
_FIELDS: Mapping[str, str] = {
    "batch_sizes": "The batch sizes to choose from.",
    "default_batch_size": "The one of batch_sizes that is used today: the exploration begins there.",
    "policy": "The name of the policy that chooses batch sizes.",
    "eta_knob": "What is saved: 1 is energy alone, 0 time alone.",
    "beta_knob": "A trial is stopped once it costs more than so many times what the cheapest batch size costs; null: "
    "no trial is.",
    "target_metric": "The validation metric at which a training has converged.",
    "higher_is_better_metric": "Whether a higher metric is a better one.",
    "max_epochs": "The number of epochs after which a training has not converged.",
    "num_pruning_rounds": "A knob of the policy pruning_thompson: in how many rounds batch sizes are ruled out.",
    "window_size": "A knob of pruning_thompson: learn from the last trials, so many times the number of batch_sizes (2 "
    "or more); 0: from all.",
    "mab_prior_mean": "A knob of pruning_thompson: the mean of its prior of costs [J].",
    "mab_prior_precision": "A knob of pruning_thompson: the precision of that prior.",
    "mab_num_explorations": "A knob of pruning_thompson: how often each batch size is tried in its exploration.",
    "mab_seed": "A knob of pruning_thompson: the seed of its draws; null: the optimizer draws one.",
    "version": "Free text; with another one another version of the job starts, or goes on.",
    "cost_budget": "The most that a trial may cost [J] while nothing has converged; null: there is no bound.",
    "early_stopping": "Whether trials may be stopped for their cost.",
    "max_attempts": "How many trials one recurrence may have.",
    "min_saving": "Another batch size is chosen for good only if it saves at least this share of the cost.",
    "probing_budget": "The share of a training's time that probing other batch sizes may take.",
}
_MORE: Mapping[str, Mapping[str, Any]] = {
    "batch_sizes": {"minItems": 1, "maxItems": MAX_BATCH_SIZES, "uniqueItems": True},
    "version": {"maxLength": MAX_VERSION_LENGTH},
}
_OF_A_NEW_JOB = {field.name: field.default for field in fields(JobSpec) if field.default is not MISSING}


def specification(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a specification in a request, of that of a complete one (JobSpec).

    No field has a ``default``: a client that filled it in would change a known job.
    """
    properties = {name: _field(name, each) for name, each in schema["properties"].items()}
    return {**schema, "title": "Specification", "description": _ABOUT, "properties": properties, "required": []}


def _field(name: str, complete: Mapping[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {**deepcopy(dict(complete)), **_MORE.get(name, {}), "description": _words(name)}
    schema.pop("default", None)
    if name in SPEC_BOUNDS:
        least, most = SPEC_BOUNDS[name]
        for part in (schema, schema.get("items", {}), *schema.get("anyOf", ())):
            if part.get("type") in ("integer", "number"):
                part |= {"minimum": least, "maximum": most}
    return schema


def _words(name: str) -> str:
    known = {"policy": default_policy(), **_OF_A_NEW_JOB}
    return f"{_FIELDS[name]} For a new job: {dump(known[name]).decode()}." if name in known else _FIELDS[name]
