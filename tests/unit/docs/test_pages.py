"""What the pages say can be done: commands and options exist, links lead somewhere, the first example runs."""

import ast
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from bso_broker.topology import client_permissions
from bso_cli.main import app
from bso_workers.metrics import Metrics
from tests.servers import PATIENCE_S

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for folder in ("docs", "deploy", "examples") for page in (ROOT / folder).rglob("*.md"))]
)
NETWORKS = {"bso_trainings"}
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, *languages: str) -> Iterator[str]:
    for found in FENCE.finditer(page.read_text(encoding="utf-8")):
        if found["language"] in languages:
            yield found["body"]


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each `bso ...` command of the page's bash blocks."""
    for body in blocks(page, "bash"):
        for line in body.replace("\\\n", " ").splitlines():
            words = shlex.split(re.sub(r"\$\([^)]*\)", "VALUE", line), comments=True)
            while words and (re.match(r"\w+=", words[0]) or words[0] in {"export", "then"}):
                words = words[1:]
            if "exec" in words and "bso" in words:  # docker compose exec worker bso ...
                words = words[words.index("bso") :]
            if words and words[0].rpartition("/")[2] == "bso":
                yield words[1:]


def everything() -> list[tuple[Path, list[str]]]:
    found = {(page, *words): (page, words) for page in PAGES for words in commands(page)}
    return list(found.values())


def links() -> list[tuple[Path, str]]:
    pattern = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
    found = {
        (page, target): None
        for page in PAGES
        for target in pattern.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
        if "://" not in target
    }
    return list(found)


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def name(value: object) -> str:
    return (
        str(value.relative_to(ROOT))
        if isinstance(value, Path)
        else " ".join(value)
        if isinstance(value, list)
        else str(value)
    )


@pytest.mark.parametrize(("page", "words"), everything(), ids=name)
def test_a_command_in_the_pages_exists_with_its_options(page: Path, words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    words = words[: _end(words)]
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"{page.name}: bso has no {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    assert not hasattr(command, "commands") or words, f"{page.name}: bso needs a subcommand"
    if "--help" not in words:
        command.make_context("bso", words, resilient_parsing=False)


def _end(words: list[str]) -> int:
    """Where the shell's own part begins: a pipe, a redirection, another command."""
    return next((index for index, word in enumerate(words) if re.match(r"\d*[|>&;]", word)), len(words))


@pytest.mark.parametrize(("page", "target"), links(), ids=name)
def test_a_link_leads_somewhere(page: Path, target: str) -> None:
    path, _, anchor = target.partition("#")
    there = (page.parent / path).resolve() if path else page
    assert there.exists()
    if anchor:
        assert anchor in anchors(there)


def test_every_make_target_in_the_pages_exists() -> None:
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(r"`make ([a-z-]+)`", text))
        named |= {word for body in blocks(page, "bash") for word in re.findall(r"^make ([a-z-]+)", body, re.MULTILINE)}
        assert named <= known, page.name


def test_every_python_block_is_python() -> None:
    for page in PAGES:
        for body in blocks(page, "python"):
            parsed = ast.parse(body, page.name)
            assert parsed.body, f"{page}: an empty block"
            compile(parsed, page.name, "exec")


def test_the_modules_that_the_pages_name_exist() -> None:
    dotted = re.compile(r"`(bso\.(?:domain|policies|replay|schema|service|simulator|storage)(?:\.\w+)*)")
    for page in PAGES:
        for named in dotted.findall(page.read_text(encoding="utf-8")):
            assert pkgutil.resolve_name(named), page.name
    behind_a_point = re.compile(r"^- \*\*[^*]+\*\* \(([^)]*)\)", re.MULTILINE)
    points = behind_a_point.findall((ROOT / "docs/researcher.md").read_text(encoding="utf-8"))
    assert points
    for named in re.findall(r"`(\w+)`", " ".join(points)):
        assert pkgutil.resolve_name(f"bso.policies.curve.{named}")


def test_the_fields_that_a_policy_is_given_or_returns_exist() -> None:
    names = ("job", "job_spec", "knowledge", "trial", "policy", "replies")
    modules = [import_module(f"bso.domain.{name}") for name in names]
    text = (ROOT / "docs/researcher.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([A-Z]\w+)` \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) >= 13
    for name, described in rows:
        kind = next(getattr(module, name) for module in modules if hasattr(module, name))
        unexplained = re.sub(r"\([^()]*`[^()]*\)", "", described)  # what stands in brackets is of the field before
        for field in re.findall(r"`([a-z]\w*)(?:\([^`]*\))?`", unexplained):
            assert hasattr(kind, field) or field in kind.__dataclass_fields__, f"{name} has no {field}"


HOPELESS = "target_metric=5, max_epochs=1, max_attempts=1"


@pytest.mark.parametrize(("target", "result"), [("target_metric=0.9", "a model: "), (HOPELESS, "no model: ")])
def test_the_first_example_is_short_and_says_whether_there_is_a_model(tmp_path: Path, target: str, result: str) -> None:
    example = next(blocks(ROOT / "README.md", "python"))
    assert len([line for line in example.splitlines() if line.strip()]) <= 15
    example = example.replace("target_metric=0.9", target)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("BSO_")}
    done = subprocess.run(
        [sys.executable, "-c", example],
        # Threads of BLAS that wait for each other in circles take minutes where the cores are busy.
        env=environment | {"BSO_STATE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(result)
    assert ("reached the target" in done.stdout) is (result == "a model: ")


def test_the_permissions_in_the_pages_are_those_that_a_client_needs() -> None:
    granted = client_permissions("vision", job_id_prefix="vision-")
    text = (ROOT / "docs/platform-engineer.md").read_text(encoding="utf-8")
    for pattern in (granted.configure, granted.write, granted.read, granted.topic_write, granted.topic_read):
        assert f"'{pattern.replace(chr(92) + '-', '-')}'" in text


def test_every_metric_in_the_pages_is_counted_by_workers() -> None:
    counted = {sample.name for metric in Metrics().registry.collect() for sample in metric.samples}
    counted |= {metric.name for metric in Metrics().registry.collect()}
    counted |= {f"{name}_total" for name in counted}
    for page in (ROOT / "docs/platform-engineer.md",):
        named = set(re.findall(r"`(bso_[a-z_]+?)(?:\{[a-z,]+\})?`", page.read_text(encoding="utf-8"))) - NETWORKS
        assert named
        assert named <= counted
