"""A Ray cluster of two nodes on this machine, for the tests that need one. Without Ray they are skipped."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

needs_ray = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.filterwarnings("ignore"),  # Ray leaves sockets and files open
    pytest.mark.timeout(600),  # to start Ray takes seconds, on a busy machine a minute
]


def ray_test(function):
    for mark in needs_ray:
        function = mark(function)
    return function


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of two CPUs each."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "object_store_memory": 100 * 2**20, "include_dashboard": False}
    made = Cluster(initialize_head=True, connect=False, head_node_args=node)
    made.extra = made.add_node(num_cpus=2, object_store_memory=100 * 2**20)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    made.wait_for_nodes()
    yield made
    ray.shutdown()
    made.shutdown()
