"""Another number of replicas for the fleet that runs on this machine: python rescale.py MODEL REPLICAS."""

from __future__ import annotations

import logging
import sys

import ray
from ray import serve

from augury.scale.ray_app import build


def main(model: str, replicas: str, address: str) -> None:
    """Deploy again under the same name, as `serve deploy` does with a changed file."""
    ray.init(address=address, namespace="serve", logging_level=logging.ERROR)
    args = {"model": model, "replicas": int(replicas), "replica_cpus": 1, "shutdown_timeout": 120}
    serve.run(build(args), name="augury", route_prefix="/")


if __name__ == "__main__":
    main(*sys.argv[1:])
