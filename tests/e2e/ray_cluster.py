"""A Ray cluster on this machine, as a process of its own: `python ray_cluster.py FOLDER`, with Ray's files in FOLDER.

A head without room for actors, and two nodes with room for two each. Says the address, and then obeys lines of its standard
input: `lose` kills a node with all that runs there. It ends with its input, and whatever it has started with it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

STORE = 80 * 1024 * 1024

#: A node that is lost is known to be after some seconds, not fifteen.
SYSTEM = {"health_check_period_ms": 1000, "health_check_initial_delay_ms": 1000}


def main(folder: str) -> None:
    os.environ.update(RAY_TMPDIR=folder, RAY_AUTH_MODE="disabled", RAY_BACKEND_LOG_LEVEL="fatal")
    from ray.cluster_utils import Cluster

    head: dict[str, Any] = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE, "_system_config": SYSTEM}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        nodes = [cluster.add_node(num_cpus=2, object_store_memory=STORE) for _ in range(2)]
        print(f"address {cluster.address}", flush=True)
        for line in sys.stdin:
            if line.strip() == "lose":
                cluster.remove_node(nodes.pop(0), allow_graceful=False)
                print("lost", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
