"""Simulating recurring jobs on measured traces: the production rules, in memory, under a virtual clock."""

from bso.simulator.drift import NO_DRIFT, Drift, parse_drift
from bso.simulator.errors import InvalidSimulation, InvalidTrace
from bso.simulator.noise import NO_NOISE, Noise, parse_noise
from bso.simulator.phases import NO_CHANGES, Changes, Move, NewVersion, parse_changes
from bso.simulator.probes import Probing
from bso.simulator.problem import BatchSizeProblem, make_problem, read_problems
from bso.simulator.run import Run, SimulatedTrial
from bso.simulator.simulation import Submission, simulate
from bso.simulator.traces import read_power_trace, read_train_trace
from bso.simulator.workloads import KNOWN_WORKLOADS, Workload

__all__ = [
    "KNOWN_WORKLOADS",
    "NO_CHANGES",
    "NO_DRIFT",
    "NO_NOISE",
    "BatchSizeProblem",
    "Changes",
    "Drift",
    "InvalidSimulation",
    "InvalidTrace",
    "Move",
    "NewVersion",
    "Noise",
    "Probing",
    "Run",
    "SimulatedTrial",
    "Submission",
    "Workload",
    "make_problem",
    "parse_changes",
    "parse_drift",
    "parse_noise",
    "read_power_trace",
    "read_problems",
    "read_train_trace",
    "simulate",
]
