"""Tests of the project, by kind: unit, contract, integration, faults, acceptance."""
