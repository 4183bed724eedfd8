"""Load on a server, and what came of it: requests at a rate or a number at a time, over HTTP or gRPC.

The law: a latency begins where the request was meant to be sent, and what the client itself was late is told beside it. What
comes out of windows of time (windows.py, report.py), and what is sent (inputs.py), is made without I/O.
"""

from kernel.loadtest.described import Described
from kernel.loadtest.inputs import Shapes, datasets_of, given_inputs, made_inputs
from kernel.loadtest.load import ClosedLoop, Load, OpenLoop
from kernel.loadtest.opening import open_channel, open_target
from kernel.loadtest.own_server import OwnServer, own_server
from kernel.loadtest.report import Histogram, Ratio, Result, histogram, ratios
from kernel.loadtest.run import Plan, Told, measure
from kernel.loadtest.target import Ask, LoadTarget, TargetOptions, channels, is_address
from kernel.loadtest.tuning import Expected, Settings, choose, reasons, settings_of
from kernel.loadtest.windows import LOOKED_AT, Window, steady

__all__ = [
    "LOOKED_AT",
    "Ask",
    "ClosedLoop",
    "Described",
    "Expected",
    "Histogram",
    "Load",
    "LoadTarget",
    "OpenLoop",
    "OwnServer",
    "Plan",
    "Ratio",
    "Result",
    "Settings",
    "Shapes",
    "TargetOptions",
    "Told",
    "Window",
    "channels",
    "choose",
    "datasets_of",
    "given_inputs",
    "histogram",
    "is_address",
    "made_inputs",
    "measure",
    "open_channel",
    "open_target",
    "own_server",
    "ratios",
    "reasons",
    "settings_of",
    "steady",
]
