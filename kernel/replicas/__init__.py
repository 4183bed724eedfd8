"""Several kernels of one host as one server: who starts them, who owns the ports, who begins anew what has died.

The supervisor runs no code of models and is on no request's way. It has the listening sockets, which each replica shares, so that
a client who comes while one of them dies or is replaced is accepted by another. What it and a replica say to each other goes over
a socket pair for each; by others between each two of them requests are handed over. Knows no protocol of clients, and no model.
"""

from __future__ import annotations

from kernel.replicas.member import Member, Role, end_with_parent
from kernel.replicas.peers import PeerTable
from kernel.replicas.ports import Ports
from kernel.replicas.processes import Processes
from kernel.replicas.spare import SPARE, Spares, take_place
from kernel.replicas.supervisor import Supervisor

__all__ = [
    "SPARE",
    "Member",
    "PeerTable",
    "Ports",
    "Processes",
    "Role",
    "Spares",
    "Supervisor",
    "end_with_parent",
    "take_place",
]
