"""Each test asserts something, and reaches through no private name of ours; none begins that may last for too long."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
PARSED = {path: ast.parse(path.read_text(encoding="utf-8")) for path in TESTS.rglob("*.py")}
# Experiments on constants of the curve policy change them in place: no setting of the product stands for them.
EXPERIMENTS = {TESTS / "unit" / "benchmarks" / "test_left_out.py", *(TESTS / "benchmarks").rglob("*.py")}
# Of the standard library, torch, Hugging Face and NVML, which offer no other way.
THEIRS = {"_exit", "_replace", "_getframe", "_writer", "_send", "_n_gpu", "_load_best_model", "_valClassMapping"}
THEIRS |= {"_errcode_to_string", "_sleep", "_repr_html_"}
WAITING = {"eventually", "eventually_async"}  # they fail where nothing comes

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def called(function: Function) -> set[str]:
    """The names, without what stands before the last dot, of what a function calls of tests and of pytest."""
    calls = [ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)]
    return {one.rpartition(".")[2] for one in calls if not one.startswith(("subprocess.", "asyncio."))}


def asserts(function: Function) -> bool:
    """Whether it does so itself."""
    by_name = any(name in {"raises", "warns"} or name.startswith("assert_") for name in called(function))
    return by_name or any(isinstance(node, ast.Assert) for node in ast.walk(function))


def private_names(tree: ast.AST) -> Iterator[str]:
    """Attributes of anything but ``self``, imports, and what is set or read by name."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(attr=name):
                yield name
            case ast.ImportFrom(names=names):
                yield from (one.name for one in names)
            case ast.Call(func=by, args=given) if "attr" in ast.unparse(by):
                yield from (str(one.value).rpartition(".")[2] for one in given if isinstance(one, ast.Constant))


def test_each_test_asserts_something_itself_or_by_a_helper() -> None:
    helpers = WAITING | {one.name for tree in PARSED.values() for one in functions(tree) if asserts(one)}
    found = [(path, one) for path, tree in PARSED.items() for one in functions(tree) if one.name.startswith("test_")]
    assert [f"{path}: {one.name}" for path, one in found if not asserts(one) and not called(one) & helpers] == []


def test_no_test_reaches_through_a_private_name() -> None:
    found = [(path, name) for path, tree in PARSED.items() if path not in EXPERIMENTS for name in private_names(tree)]
    private = [(path, name) for path, name in found if name.startswith("_") and not name.startswith("__")]
    assert [f"{path}: {name}" for path, name in private if name not in THEIRS] == []


def test_with_too_few_minutes_none_is_begun_and_each_file_is_named(tmp_path: Path) -> None:
    """Each may last for its timeout, 10 minutes; with more time than that, all are run."""
    files = ["tests/unit/domain/test_quotas.py", "tests/unit/test_tls.py"]
    environ = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}

    def printed(minutes: float) -> str:
        program = [sys.executable, "-m", "pytest", "-o", f"cache_dir={tmp_path}", f"--minutes={minutes}", *files]
        done = subprocess.run(program, cwd=TESTS.parent, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    too_few = printed(0.2)
    assert " passed" not in too_few
    assert all(f"no time was left for {file}" in too_few for file in files), too_few
    enough = printed(90)
    assert " passed" in enough
    assert "no time was left" not in enough
