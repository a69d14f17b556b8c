"""Energy monitors: what a training costs in joules. A ZeusMonitor fits as it is."""

from bso_client.energy.energy_monitor import EnergyMonitor
from bso_client.energy.errors import MeterFailed, NoMeter
from bso_client.energy.measurement import Measurement
from bso_client.energy.monitor import Measured, Monitor

__all__ = ["EnergyMonitor", "Measured", "Measurement", "MeterFailed", "Monitor", "NoMeter"]
