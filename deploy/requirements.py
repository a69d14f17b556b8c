"""Print what a project requires, with some of its extras: ``python requirements.py pyproject.toml EXTRA...``."""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: str, extras: list[str]) -> list[str]:
    """The requirements that stand in a pyproject.toml, those of the extras after the project's own."""
    project = tomllib.loads(pyproject)["project"]
    return [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]


if __name__ == "__main__":
    file, *chosen = sys.argv[1:]
    print("\n".join(requirements(Path(file).read_text(encoding="utf-8"), chosen)))
