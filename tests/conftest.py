"""What all tests share: the fixtures of tests.servers, how hypothesis searches, and an end where time is short."""

import os
import random
import signal
import sys
import time
from collections.abc import Iterator

import hypothesis
import pytest

# What several folders share asserts, too; pytest has to know before anybody imports it.
pytest.register_assert_rewrite("tests.contract.storage.job_requests", "tests.integration.workers.recurrences")

pytest_plugins = ["tests.servers.fixtures"]

# No deadlines, and no complaint that examples are made slowly: machines differ. In CI the same examples every time:
# a failure is the change's, and can be repeated.
hypothesis.settings.register_profile(
    "bso",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
)
hypothesis.settings.load_profile("bso")

# Whether this machine has meters makes no difference to a test; tests of meters say otherwise.
os.environ["BSO_ENERGY"] = "assumed"

# A shell's background job ignores SIGINT, and so would every program that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _consoles_of_its_own() -> Iterator[None]:
    """The command line's consoles keep the width that they found first, for a process; here, for a test."""
    yield
    if terminal := sys.modules.get("bso_cli.terminal"):
        terminal.people.cache_clear()
        terminal.onlookers.cache_clear()


_ENDS_S = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--minutes``."""
    parser.addoption(
        "--minutes",
        type=float,
        help="begin no test that may last beyond this by its timeout; files come in an order by chance, and those that "
        "were not run are named",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Note when the time is up."""
    config.stash[_ENDS_S] = time.monotonic() + 60.0 * (config.getoption("--minutes") or float("inf"))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With ``--minutes``, files come in another order each time: none is always the one that is left out."""
    if config.getoption("--minutes"):
        chance = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID"))  # all processes need the same order
        places = {path: chance.random() for path in sorted({item.path for item in items})}
        items.sort(key=lambda item: places[item.path])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what may last for too long; a test that has failed is repeated all the same."""
    marker = item.get_closest_marker("timeout")
    timeout_s = float(marker.args[0] if marker else item.config.getoption("timeout") or item.config.getini("timeout"))
    is_repeated = getattr(item, "execution_count", 1) > 1
    if time.monotonic() + timeout_s > item.config.stash[_ENDS_S] and not is_repeated:
        pytest.skip(f"no time was left for {item.path.relative_to(item.config.rootpath)}")
