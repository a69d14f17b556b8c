"""What all tests share: the fixtures of tests.servers, and how hypothesis searches."""

import os
import signal

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
