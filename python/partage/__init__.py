"""Partage: many containers share one accelerator, each held to its share of memory and compute.

The package is imported by the command line, the node agent and the services of the cluster; importing it loads nothing
native. Rooms: `model` (words, units, errors), `shm` (policy, ledger, turns), `sim` (the simulated machine), `run` (a
program with a share, without Kubernetes), `cli`.
"""

from partage._version import __version__

__all__ = ["__version__"]
