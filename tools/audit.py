"""Ask whether a vulnerability is known of what the image ships, and of what the wheel requires (make audit).

The question goes by pip-audit to its service, PyPI's; options are pip-audit's: ``-s osv`` asks osv.dev. Exit codes:

0   no vulnerability is known
1   one is known, or pip-audit failed
75  the service could not be asked, or does not know all packages
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.pins import FILE, PROJECT, pins

FOUND, COULD_NOT_ASK = 1, 75
# The last line of pip-audit where a service does not answer, refuses, or answers what is no answer.
NO_ANSWER = re.compile(
    r"^(?:requests|urllib3|pip_audit\._service)\.[\w.]+|^ERROR:\S+?:.*(?:connect|timed out)", re.IGNORECASE
)


class AuditFailed(Exception):
    """pip-audit ended without a result, for another reason than its service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the service knows of a list of releases; ``not_asked`` is why it was not asked, or not about all."""

    asked: int = 0
    vulnerabilities: list[str] = field(default_factory=list)
    not_asked: str | None = None


def main(arguments: Sequence[str]) -> int:
    """Audit both lists, and print what came of it."""
    answers = {
        "the image's pins": ask(_pinned(FILE), arguments),
        "what the wheel requires, as installed here": ask(_required(PROJECT), arguments),
    }
    for name, answer in answers.items():
        for line in answer.vulnerabilities:
            print(f"audit: {name}: {line}")
        if answer.not_asked is not None:
            print(f"audit: {name}: not audited: {answer.not_asked}")
        elif not answer.vulnerabilities:
            print(f"audit: {name}: no vulnerability is known of {answer.asked} releases")
    if any(answer.vulnerabilities for answer in answers.values()):
        return FOUND
    return COULD_NOT_ASK if any(answer.not_asked for answer in answers.values()) else 0


def ask(releases: Sequence[str], options: Sequence[str]) -> Answer:
    """Let pip-audit ask its service about releases (NAME==VERSION). Raises AuditFailed."""
    with tempfile.TemporaryDirectory() as folder:
        listed, result = Path(folder, "requirements.txt"), Path(folder, "result.json")
        listed.write_text("".join(f"{one}\n" for one in releases), encoding="utf-8")
        command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
        # Each audit asks again: pip-audit's cache keeps yesterday's answers.
        command += ["--cache-dir", folder, "--format", "json", "--output", str(result), "--requirement", str(listed)]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        if result.exists():
            return understood(json.loads(result.read_text(encoding="utf-8")))
    last = (done.stderr.strip().splitlines() or [""])[-1]
    if NO_ANSWER.search(last):
        return Answer(not_asked=last)
    raise AuditFailed(f"pip-audit ended with {done.returncode} and no result:\n{done.stderr}")


def understood(result: Mapping[str, Any]) -> Answer:
    """What a result of pip-audit says. It passes for clean what its service does not know: here it does not."""
    skipped = [one for one in result["dependencies"] if "skip_reason" in one]
    audited = [one for one in result["dependencies"] if "skip_reason" not in one]
    vulnerabilities = [_vulnerability(one, known) for one in audited for known in one["vulns"]]
    not_asked = None
    if skipped:
        not_asked = f"{len(skipped)} of {len(skipped) + len(audited)} releases, {skipped[0]['skip_reason']} ..."
    return Answer(asked=len(audited), vulnerabilities=vulnerabilities, not_asked=not_asked)


def _vulnerability(release: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    names = ", ".join([known["id"], *known["aliases"]])
    fixed = ", ".join(known["fix_versions"])
    return f"{release['name']} {release['version']}: {names}; {f'repaired in {fixed}' if fixed else 'not repaired yet'}"


def _pinned(file: Path) -> list[str]:
    return [f"{pin.name}=={pin.version}" for pin in pins(file.read_text(encoding="utf-8"))]


def _required(project: str) -> list[str]:
    """All that an installed distribution requires, with all its extras, directly and by others."""
    extras = metadata.metadata(project).get_all("Provides-Extra", [])
    found: dict[str, str] = {}
    waiting = [Requirement(f"{project}[{','.join(extras)}]")]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement = waiting.pop()
        name = str(canonicalize_name(requirement.name))
        if (name, frozenset(requirement.extras)) in seen:
            continue
        seen.add((name, frozenset(requirement.extras)))
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # an extra of users that this environment does not have (a GPU's library)
        waiting += _requirements(name, requirement.extras)
    del found[project]
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def _requirements(name: str, extras: set[str]) -> Iterator[Requirement]:
    for requirement in map(Requirement, metadata.requires(name) or []):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except AuditFailed as error:
        sys.exit(f"audit: {error}")
