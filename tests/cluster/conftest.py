"""Fixtures of the cluster layer: one cluster a session, one namespace a test; see README.md beside this file.

A machine that cannot have a cluster skips with the reason, unless PARTAGE_CLUSTER=required, as in CI, where it fails.
A test that fails shows the end of every component's log.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from tests.cluster import packages
from tests.cluster.agent import NodeAgent
from tests.cluster.binaries import CHART_TOOLS, TOOLS, Binaries, Tool, UnavailableError, obtain
from tests.cluster.cluster import Cluster
from tests.cluster.controlplane import Options
from tests.cluster.namespace import Namespace

HERE = Path(__file__).parent
OPENED = pytest.StashKey[list[Cluster]]()
OpenControlPlane = Callable[..., Cluster]


@pytest.hookimpl(tryfirst=True)  # before some are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests without the session's cluster first: some want the machine's one kubelet for themselves.

    Mark those that want that kubelet: the others can run beside them, in a session of their own. And let the limit of
    a test count the test alone: a fixture may wait for a build or for another session's kubelet.
    """
    items.sort(key=lambda item: item.path.is_relative_to(HERE) and "cluster" in getattr(item, "fixturenames", ()))
    for item in items:
        if not item.path.is_relative_to(HERE):
            continue
        if {"cluster", "machine"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.kubelet)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300, func_only=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of every component's log to the report of a test that failed."""
    report = yield
    if report.failed:
        for cluster in item.config.stash.get(OPENED, []):
            report.sections.append((f"cluster {cluster.state.directory.name}", cluster.logs()))
    return report


def give_up(reason: str) -> None:
    """Skip the test, or fail it where the layer is required."""
    if os.environ.get("PARTAGE_CLUSTER") == "required":
        pytest.fail(f"PARTAGE_CLUSTER=required, but {reason}", pytrace=False)
    pytest.skip(reason)


def spoken(config: pytest.Config) -> AbstractContextManager[None]:
    """Let what is printed be seen at once: why a build or another session is waited for."""
    capture = config.pluginmanager.getplugin("capturemanager")
    return capture.global_and_fixture_disabled() if capture else nullcontext()


@pytest.fixture(scope="session")
def binaries(pytestconfig: pytest.Config) -> Binaries:
    """Every program of a cluster, built where it is not here yet."""
    return had(pytestconfig, TOOLS)


@pytest.fixture(scope="session")
def chart_tools(pytestconfig: pytest.Config) -> Binaries:
    """The programs helm and promtool, built where they are not here yet."""
    return had(pytestconfig, CHART_TOOLS)


def had(config: pytest.Config, tools: tuple[Tool, ...]) -> Binaries:
    """Return the programs of these tools; skip, or fail where the layer is required."""
    try:
        with spoken(config):
            return obtain(tools)
    except UnavailableError as error:
        give_up(str(error))
        raise


@pytest.fixture(scope="session")
def cluster(binaries: Binaries, pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """The session's cluster: a control plane and this machine's one node."""
    reason = packages.reason()
    if reason:
        give_up(reason)
    yield from opened(pytestconfig, binaries, node=True)


@pytest.fixture
def control_plane(binaries: Binaries, pytestconfig: pytest.Config) -> Iterator[OpenControlPlane]:
    """Start further control planes, without a node: `control_plane(scheduler=False, ...)`, see `Options`."""
    running: list[Iterator[Cluster]] = []

    def start(**options: object) -> Cluster:
        running.append(opened(pytestconfig, binaries, node=False, options=Options(**options)))  # type: ignore[arg-type]
        return next(running[-1])

    yield start
    for one in running:
        next(one, None)


def opened(
    config: pytest.Config, binaries: Binaries, *, node: bool, options: Options | None = None
) -> Iterator[Cluster]:
    """Open a cluster, let failing tests know of it, and close it at the end."""
    with spoken(config):
        cluster = Cluster.open(binaries, node=node, options=options)
    known = config.stash.setdefault(OPENED, [])
    known.append(cluster)
    yield cluster
    known.remove(cluster)
    cluster.close()


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace of the test's own, named after it; its pods are gone at the end."""
    plain = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40].strip("-")
    made = Namespace(cluster, f"{plain}-{secrets.token_hex(2)}").open()
    yield made
    made.close()


@pytest.fixture(scope="module")
def agent(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[NodeAgent]:
    """The node agent for the tests of one file, as its `AGENT` wants it (fields of NodeAgent)."""
    made = NodeAgent(cluster, **getattr(request.module, "AGENT", {})).start()
    yield made
    made.end()
