"""What stands in the place of the package bso is recognised before it is imported, whatever it is."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("bso_client", "bso_broker", "bso_gateway", "bso_migrations", "bso_workers")
PROGRAM = "import sys; sys.path[:0] = sys.argv[2:]; __import__(sys.argv[1])"
SIDE_EFFECT = "raise SystemExit('this file must not be run')\n"


def importing(package: str, *first: Path) -> subprocess.CompletedProcess[str]:
    """Import a package where these folders come first on the import path."""
    command = [sys.executable, "-P", "-c", PROGRAM, package, *map(str, first)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")


def importing_client(*first: Path) -> subprocess.CompletedProcess[str]:
    """Import the client where these folders come first on the import path."""
    return importing("bso_client", *first)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_file_of_the_users_own_is_not_run_but_named(tmp_path: Path, package: str) -> None:
    (tmp_path / "bso.py").write_text(SIDE_EFFECT, encoding="utf-8")
    done = importing(package, tmp_path)
    assert done.returncode == 1
    assert f"something else called bso at {tmp_path / 'bso.py'}" in done.stderr
    assert "rename it" in done.stderr


def test_a_folder_without_init_does_not_hide_the_package_behind_it(tmp_path: Path) -> None:
    (tmp_path / "bso").mkdir()
    assert importing_client(tmp_path).returncode == 0


@pytest.mark.parametrize("record", ["bso-2.0.0.dist-info", "BSO-2.0.0.dist-info", "bso-2.0.0-py3.11.egg-info"])
def test_the_other_distribution_is_named_however_it_was_installed(tmp_path: Path, record: str) -> None:
    (tmp_path / "bso").mkdir()
    (tmp_path / "bso/__init__.py").write_text(SIDE_EFFECT, encoding="utf-8")
    (tmp_path / record).mkdir()
    done = importing_client(tmp_path)
    assert "(bso 2.0.0)".casefold() in done.stderr.casefold()
    assert f"{sys.executable} -m pip uninstall bso" in done.stderr


def test_distributions_whose_names_only_begin_like_it_are_no_collision(tmp_path: Path) -> None:
    (tmp_path / "bso").symlink_to(ROOT / "bso")
    for name in ("bso_optimizer-0.1.0.dist-info", "bso_plugins-1.0.dist-info"):
        (tmp_path / name).mkdir()
    done = importing_client(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_zip_file_that_holds_the_package_is_recognised(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "own.zip", "w") as own:
        for path in sorted((ROOT / "bso").rglob("*.py")):
            own.write(path, path.relative_to(ROOT))
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as other:
        other.writestr("bso/__init__.py", SIDE_EFFECT)
    assert importing_client(tmp_path / "own.zip").returncode == 0
    assert "something else called bso" in importing_client(tmp_path / "other.zip").stderr
