"""The cluster layer's fixtures, for what takes many rounds on a real kubelet; counts as for all of soak."""

from __future__ import annotations

from tests.cluster.conftest import agent, binaries, cluster, control_plane, namespace, pytest_runtest_makereport

__all__ = ["agent", "binaries", "cluster", "control_plane", "namespace", "pytest_runtest_makereport"]
