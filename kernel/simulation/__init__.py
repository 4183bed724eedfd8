"""What would become of requests: the real scheduler on virtual time, with stand-ins for what models compute.

The law: nothing is decided here. Models are loaded with their own configs, requests come as they are told to, executions take as
long as they are said to, and all between is what serves, too. One seed gives one result.
"""

from kernel.simulation.arrivals import Arrivals, Closed, read_arrivals
from kernel.simulation.cost import Cost, Costs, Measured, Steps, read_costs
from kernel.simulation.numbers import duration, number
from kernel.simulation.run import ModelWork, Simulated, simulate
from kernel.simulation.traffic import Mix, read_contents, read_priorities, read_shapes

__all__ = [
    "Arrivals",
    "Closed",
    "Cost",
    "Costs",
    "Measured",
    "Mix",
    "ModelWork",
    "Simulated",
    "Steps",
    "duration",
    "number",
    "read_arrivals",
    "read_contents",
    "read_costs",
    "read_priorities",
    "read_shapes",
    "simulate",
]
