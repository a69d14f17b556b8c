"""The ``bso`` command, also ``python -m bso_cli``. Where the package ``bso`` is another one, it says so."""

from __future__ import annotations

import sys

from bso_optimizer import PackageCollision, require_own_package


def main() -> None:
    """Run the command line, and exit with its exit code (1 where the package cannot be found, or for a bug)."""
    try:
        require_own_package()
    except PackageCollision as error:
        sys.exit(f"bso: {error}")

    from bso_cli.main import app
    from bso_cli.terminal import guard_outputs, print_traceback

    guard_outputs()
    try:
        app(prog_name="bso")
    except Exception as error:  # noqa: BLE001  # Python would print it with whatever is in it
        print_traceback(error)
        sys.exit(1)


if __name__ == "__main__":
    main()
