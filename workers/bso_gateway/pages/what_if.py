"""What other policies and knobs would have cost a job: simulated in a process of its own, which ends with its reader.

As a program it reads a question and a log from its standard input, a line each, and prints the answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import structlog
from structlog.typing import FilteringBoundLogger

from bso.domain.errors import BsoError
from bso.domain.policies import policy_names
from bso_gateway.http import HttpError

SEEDS, MOST_RECURRENCES = 30, 60
LIMIT_S = 60.0
_NICER = 10  # decisions come first
_MOST_OF_COMPLAINT = 2000
_PROGRAM = (sys.executable, "-P", "-m", "bso_gateway.pages.what_if")
"""-P: no module comes from the folder where the gateway was started."""

_log: FilteringBoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What to change of a job: None leaves it as it is. ``hardware_key``: on which kind; None: the best known one."""

    job_id: str
    policy: str | None = None
    eta_knob: float | None = None
    hardware_key: str | None = None


def question_in(job_id: str, given: Mapping[str, str]) -> Question | None:
    """The question that an address asks; None: none yet. Raises HttpError 422."""
    policy, eta, hardware = (given.get(name, "").strip() for name in ("policy", "eta", "hardware"))
    if not (policy or eta):
        return None
    if policy and policy not in policy_names():
        words = f"policy must be one of {', '.join(policy_names())}, got {policy[:60]!r}"
        raise HttpError(422, words, kind="invalid_policy")
    eta_knob = None
    if eta:
        with suppress(ValueError):
            eta_knob = float(eta)
        if eta_knob is None or not 0.0 <= eta_knob <= 1.0:
            raise HttpError(422, f"eta must be a number from 0 to 1, got {eta[:60]!r}", kind="invalid_eta")
    return Question(job_id=job_id, policy=policy or None, eta_knob=eta_knob, hardware_key=hardware or None)


async def answer_to(
    question: Question, log: Sequence[str], *, program: Sequence[str] = _PROGRAM, limit_s: float = LIMIT_S
) -> Mapping[str, Any]:
    """The answer, from the events of a log as they are published. Raises HttpError where there is none.

    The process is killed when the answer is not awaited any more, or takes too long.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *program,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
    )
    lines = "\n".join([json.dumps(asdict(question)), *log])
    try:
        async with asyncio.timeout(limit_s):
            printed, complaint = await process.communicate(lines.encode())
    except TimeoutError as error:
        words = f"the simulation did not end within {limit_s:g} s: bso replay what-if {question.job_id} has no limit"
        raise HttpError(503, words, kind="too_long") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        end = complaint.decode(errors="replace")[-_MOST_OF_COMPLAINT:]
        _log.error("a simulation failed", action="simulation_failed", job_id=question.job_id, reason=end)
        raise HttpError(500, "the simulation failed: the reason stands in the log of the gateway", kind="unforeseen")
    answer: Mapping[str, Any] = json.loads(printed)
    if "refused" in answer:
        raise HttpError(422, answer["refused"], kind="not_answered", title="Nothing can be said")
    return answer


def _answered(question: Question, log: Sequence[str]) -> Mapping[str, Any]:
    from bso.replay.fold import Folding
    from bso.replay.what_if.answers import alternatives, play
    from bso.replay.what_if.history import record_of
    from bso.schema.codec import decode_event, dump

    folding = Folding(question.job_id)
    for line in log:
        folding.add(decode_event(line.encode()))
    folding.require_whole()
    record = record_of(folding, hardware=question.hardware_key)
    policies = () if question.policy is None else (question.policy,)
    eta_knobs = () if question.eta_knob is None else (question.eta_knob,)
    compared = alternatives(record, policies=policies, eta_knobs=eta_knobs)
    times = min(max(1, record.models), MOST_RECURRENCES)
    found = play(record, compared, seeds=SEEDS, recurrences=times, processes=1)
    return {
        "hardware": record.hardware.describe(),
        "recurrences": times,
        "seeds": SEEDS,
        "left_out": {size: why for size in record.batch_sizes if (why := record.why_unknown(size)) is not None},
        "earlier_trials": record.earlier_trials,
        "alternatives": [{"name": each.alternative.name, **json.loads(dump(each))} for each in found],
    }


def _main() -> None:
    import resource  # only Unix has it

    os.nice(_NICER)
    limit_s = int(LIMIT_S) + 1  # where nobody ends it: the gateway was killed
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    first, *log = sys.stdin.read().split("\n")
    try:
        answer = _answered(Question(**json.loads(first)), log)
    except BsoError as error:
        answer = {"refused": str(error)}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    _main()
