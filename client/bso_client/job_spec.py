"""The specification of a job as a user writes it: only what was set, checked at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Required, TypedDict, Unpack

from bso.domain import job_spec as rules
from bso.domain.identifiers import identifier_problem
from bso_client.errors import InvalidSpec


class SpecFields(TypedDict, total=False):
    """The fields of a job specification and their types; bso.domain.job_spec has their ranges and defaults."""

    job_id: str | None
    job_id_prefix: str
    batch_sizes: Required[Sequence[int]]
    default_batch_size: Required[int]
    eta_knob: float
    beta_knob: float | None
    target_metric: float
    higher_is_better_metric: bool
    max_epochs: int
    num_pruning_rounds: int
    window_size: int
    mab_prior_mean: float
    mab_prior_precision: float
    mab_num_explorations: int
    mab_seed: int | None
    policy: str
    version: str
    cost_budget: float | None
    early_stopping: bool
    max_attempts: int
    min_saving: float
    probing_budget: float


_ADDRESS = ("job_id", "job_id_prefix")


class JobSpec:
    """What to optimize: a recurring training job. Raises InvalidSpec naming every field that is wrong.

    ``job_id``                  the job's name: every recurrence must use the same one (or set BSO_JOB_ID)
    ``job_id_prefix``           without a job_id, a new job is made under a name that begins so
    ``batch_sizes``             those to choose from (required)
    ``default_batch_size``      the one used until now, where the exploration begins (required)
    ``target_metric``           a training that reaches it has converged (0.5)
    ``higher_is_better_metric`` True for an accuracy, False for a loss (True)
    ``max_epochs``              a training that needs more has failed (100)
    ``eta_knob``                from 0 (only time counts) to 1 (only energy counts) (0.5)
    ``beta_knob``               stop a training that costs so many times the cheapest one; None: never (2.0)
    ``version``                 free text: change it when model or learning-rate rule change; what the version before
                                knew is then only expected, until runs of the new one confirm or refute it
    ``cost_budget``             joules a training may cost while nothing has converged yet (None)
    ``early_stopping``          False lets every training run to its end (True)
    ``max_attempts``            trainings for one model; the last one is never stopped for its cost (3)
    ``min_saving``              the share of the cost below which the job stays with its batch size (0.02)
    ``probing_budget``          the share of a training's time that trial.probe_epoch_costs may take; 0: none (0.05)
    ``policy``                  how batch sizes are chosen: "curve", which believes in smooth curves over the batch
                                size, or "pruning_thompson", that of the Zeus paper ("curve")
    ``window_size``             pruning_thompson learns only from the last so many trainings per batch size; 0: all (0)
    ``num_pruning_rounds``, ``mab_prior_mean``, ``mab_prior_precision``, ``mab_num_explorations``, ``mab_seed``
                                knobs of pruning_thompson, as in the paper; curve ignores them, and window_size

    What is not set here is taken from the recorded specification, at the first registration from the defaults.
    """

    def __init__(self, **fields: Unpack[SpecFields]) -> None:
        given = {name: _plain(value) for name, value in fields.items()}
        problems = _address_problems(given)
        problems |= {name: f"is unknown; known are {', '.join(KNOWN)}" for name in given if name not in KNOWN}
        requested = {name: value for name, value in given.items() if name in rules.SPEC_FIELDS}
        try:
            self._resolved = rules.resolve_spec(requested)
        except InvalidSpec as invalid:
            problems |= invalid.problems
        if problems:
            raise InvalidSpec(problems)
        self._requested = requested
        self._job_id: str | None = given.get("job_id")
        self._job_id_prefix: str = given.get("job_id_prefix", "job")

    @property
    def job_id(self) -> str | None:
        """The job's name, if one was given."""
        return self._job_id

    @property
    def job_id_prefix(self) -> str:
        """How a name made by the optimizer begins."""
        return self._job_id_prefix

    @property
    def requested(self) -> Mapping[str, Any]:
        """Only the fields that were set: what is sent."""
        return dict(self._requested)

    def resolve(self, recorded: rules.JobSpec | None = None) -> rules.JobSpec:
        """The whole specification, completed from what is recorded, else from this release's defaults."""
        return self._resolved if recorded is None else rules.resolve_spec(self._requested, recorded)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, JobSpec):
            return NotImplemented
        mine, theirs = (self._address, self._requested), (other._address, other._requested)
        return mine == theirs

    def __hash__(self) -> int:
        return hash((self._address, repr(sorted(self._requested.items()))))

    def __repr__(self) -> str:
        shown = {name: value for name, value in zip(_ADDRESS, self._address, strict=True) if value not in (None, "job")}
        return f"JobSpec({', '.join(f'{name}={value!r}' for name, value in (shown | self._requested).items())})"

    @property
    def _address(self) -> tuple[str | None, str]:
        return self._job_id, self._job_id_prefix


KNOWN = (*_ADDRESS, *rules.SPEC_FIELDS)


def _address_problems(given: Mapping[str, Any]) -> dict[str, str]:
    named = {name: given[name] for name in _ADDRESS if name in given and (name, given[name]) != ("job_id", None)}
    checked = {name: identifier_problem(value) for name, value in named.items()}
    return {name: problem for name, problem in checked.items() if problem is not None}


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy or torch as Python's own."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    convert = getattr(value, "tolist", None)
    return convert() if callable(convert) else value
