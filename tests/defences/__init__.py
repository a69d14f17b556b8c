"""Defences, and what becomes of the tests that docs/security.md names when one of them is removed."""
