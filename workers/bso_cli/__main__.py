"""The ``bso`` command, also ``python -m bso_cli``. Where the package ``bso`` is another one, it says so."""

from __future__ import annotations

import sys

from bso_optimizer import PackageCollision, require_own_package


def main() -> None:
    """Run the command line, and exit with its exit code (1 where the package cannot be found)."""
    try:
        require_own_package()
    except PackageCollision as error:
        sys.exit(f"bso: {error}")

    from bso_cli.main import app

    app(prog_name="bso")


if __name__ == "__main__":
    main()
