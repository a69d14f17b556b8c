"""What the distribution bso-optimizer installs, and whether Python finds it.

Another project's distribution installs a package with the same import name, ``bso``. In one environment, each of the
two overwrites files of the other, and the one that was installed last wins. ``bso_client``, ``bso_workers``,
``bso_broker``, ``bso_migrations`` and the ``bso`` command therefore call ``require_own_package`` before they import
``bso``. Nothing of this package imports it.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
import warnings
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path

DISTRIBUTION = "bso-optimizer"

_INSTALLED = re.compile(r"(bso)-([^-]+)(?:-.*)?\.(?:dist|egg)-info", re.IGNORECASE)
_MARKERS = (b"__distribution__", DISTRIBUTION.encode())


class PackageCollision(ImportError):
    """Python finds another package called ``bso``, or only a part of this one. The message says what to do."""


class PackageCollisionWarning(UserWarning):
    """This ``bso`` has overwritten files of another distribution that installs a package of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The package ``bso`` that Python would import: its file, whether it is ours, and who else claims its folder.

    ``path`` is None where the package has no file ``__init__.py``. ``others`` are the names and versions of other
    distributions called ``bso`` that are installed in the same folder.
    """

    path: Path | None
    is_own: bool
    others: tuple[str, ...]


@functools.cache
def require_own_package() -> None:
    """Make sure that ``import bso`` gives the package of this distribution.

    Raises PackageCollision where it does not. Warns with a PackageCollisionWarning where this package has
    overwritten that of another distribution: it works, until the other one is uninstalled, which removes the files
    that both have.
    """
    found = _find()
    if not found.is_own:
        raise PackageCollision(_wrong_package(found), name="bso", path=str(found.path) if found.path else None)
    if found.others:
        warnings.warn_explicit(_overwritten(found), PackageCollisionWarning, filename=str(found.path), lineno=1)


def _find() -> Found:
    try:
        spec = importlib.util.find_spec("bso")
    except ValueError:  # a module without a specification stands under this name already
        spec = None
    if spec is None or not spec.has_location or spec.origin is None:
        return Found(path=None, is_own=False, others=())
    path = Path(spec.origin)
    return Found(path=path, is_own=_is_marked(spec, spec.origin), others=_other_distributions(path))


def _is_marked(spec: ModuleSpec, origin: str) -> bool:
    get_data = getattr(spec.loader, "get_data", None)
    if get_data is None:  # a loader of a bundled program, which holds no files: nothing can have overwritten them
        return True
    try:
        content: bytes = get_data(origin)
    except OSError:  # likewise
        return True
    return all(marker in content for marker in _MARKERS)


def _other_distributions(path: Path) -> tuple[str, ...]:
    """Read from the folder's names: importlib.metadata takes longer than the rest of this module together."""
    if path.name.partition(".")[0] != "__init__":
        return ()
    try:
        names = sorted(each.name for each in path.parents[1].iterdir())
    except OSError:
        return ()
    return tuple(f"{found[1]} {found[2]}" for name in names if (found := _INSTALLED.fullmatch(name)))


def _wrong_package(found: Found) -> str:
    if found.path is None:
        return (
            "the package bso of the distribution bso-optimizer is not there, or not complete: its file "
            "bso/__init__.py is missing. This happens when another distribution with a package called bso is "
            f"uninstalled. Install this one again:\n{_reinstall()}"
        )
    if found.others:
        return (
            f"Python finds the package bso of another distribution ({', '.join(found.others)}) at {found.path}, in "
            "place of that of bso-optimizer. Both have the import name bso, so one environment cannot hold both. "
            "Remove the other one, and install this one again:\n"
            f"    {_python()} -m pip uninstall bso\n{_reinstall()}\n"
            "or make a virtual environment for each of them."
        )
    return (
        f"Python finds something else called bso at {found.path}, in place of the package of bso-optimizer. If it is "
        "a file of yours, rename it, or take its folder off the import path (PYTHONPATH, the folder of the script). "
        f"If another distribution installed it, uninstall that one, and install this one again:\n{_reinstall()}"
    )


def _overwritten(found: Found) -> str:
    return (
        f"another distribution ({', '.join(found.others)}) installed a package called bso here, too, and bso-optimizer "
        "has overwritten its files. This program works; the other one does not, and uninstalling it breaks this one. "
        "Remove it, and install this one again:\n"
        f"    {_python()} -m pip uninstall bso\n{_reinstall()}\n"
        "or make a virtual environment for each of them."
    )


def _reinstall() -> str:
    """The same release again, with what it requires as it is."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        release = f"{DISTRIBUTION}=={version(DISTRIBUTION)}"
    except PackageNotFoundError:
        release = DISTRIBUTION
    return f"    {_python()} -m pip install --force-reinstall --no-deps {release}"


def _python() -> str:
    return sys.executable or "python"
