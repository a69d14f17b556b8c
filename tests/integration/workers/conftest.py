"""Workers in this process and in their own, over private servers."""

from tests.integration.workers.fixtures import *  # noqa: F403  # fixtures are found by name; the list stands there
