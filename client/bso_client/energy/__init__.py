"""Energy monitors: what a training costs in joules. A ZeusMonitor fits as it is.

``monitor``         what the client needs of a monitor, what one measures, and the one that assumes a constant power
``counters``        rules: what two readings of a counter say about the time between them
``nvml``, ``rapl``  adapters: NVIDIA's GPUs; processors and their memory
``gpus``            which GPUs are this process' own, and why one cannot be measured
``meters``          what the environment asks for; the counters of this process, opened or surveyed
``energy_monitor``  the monitor that reads them, and the choice between measured and assumed energy
"""

from bso_client.energy.energy_monitor import EnergyMonitor
from bso_client.energy.monitor import Measured, Measurement, MeterFailed, Monitor, NoMeter

__all__ = ["EnergyMonitor", "Measured", "Measurement", "MeterFailed", "Monitor", "NoMeter"]
