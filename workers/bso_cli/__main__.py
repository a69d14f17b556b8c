"""The ``bso`` command, also ``python -m bso_cli``. Where the package ``bso`` is another one, it says so."""

from __future__ import annotations

import os
import sys
from itertools import takewhile

from bso_optimizer import PackageCollision, require_own_package


def main() -> None:
    """Run the command line, and exit with its exit code (1 where the package cannot be found, or for a bug)."""
    try:
        require_own_package()
    except PackageCollision as error:
        sys.exit(f"bso: {error}")

    from bso.guarded_stream import guard_outputs
    from bso_cli.main import app
    from bso_cli.terminal import print_traceback

    guard_outputs()
    _hide_passwords()
    try:
        app(prog_name="bso")
    except Exception as error:  # noqa: BLE001  # Python would print it with whatever is in it
        print_traceback(error)
        sys.exit(1)


def _hide_passwords() -> None:
    """Let nothing that this process prints hold the passwords that it was started with."""
    from bso.credentials import has_password, hide_passwords_of

    own = [word.partition("=")[2] if word.startswith("--") else word for word in takewhile("--".__ne__, sys.argv[1:])]
    own = [
        word for word in own if "://" in word or not word.rpartition("@")[2].lstrip("-").isdecimal()
    ]  # a drift has an @, too
    hide_passwords_of(*own, *(text for name, text in os.environ.items() if name.startswith(("BSO_", "ZEUS_BSO_"))))
    if any(map(has_password, own)):
        sys.stderr.write(
            "bso: a password stands in an option, where every user of this machine can read it (ps): give it in "
            "BSO_URL, BSO_DATABASE_URL or BSO_AMQP_URL (that of Zeus' database in ZEUS_BSO_DATABASE_URL), or in a file "
            "that BSO_URL_FILE, BSO_DATABASE_URL_FILE or BSO_AMQP_URL_FILE names\n"
        )


if __name__ == "__main__":
    main()
