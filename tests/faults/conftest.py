"""Servers and workers that are killed, frozen and cut off."""

from tests.integration.workers.fixtures import *  # noqa: F403  # fixtures are found by name; the list stands there
