"""An optimizer over memory for each test of the client."""

from tests.unit.client.fixtures import *  # noqa: F403  # fixtures are found by name; the list stands there
