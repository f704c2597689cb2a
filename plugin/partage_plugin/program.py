"""The node agent as a program: everything real around the agent.

Called by `main`, which is small so that all of this is loaded as sparingly as can be. Reads its settings, connects to
the API server, and runs the agent until it is asked to end; SIGHUP reads the settings again. Its exit codes:
`partage.program`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from partage import __version__
from partage.devices.nvidia.backend import NvidiaBackend
from partage.devices.nvidia.nvml import Nvml
from partage.kube import Client, load_config
from partage.logs import configure_logs
from partage.model import DeviceError, LaunchError, UsageError
from partage.model.node_devices import SafeMode
from partage.program import run_program
from partage.run import libraries
from partage.run.simulated import context_of
from partage.sim.machine import machine_path
from partage_plugin.agent import Agent, Choices
from partage_plugin.calls import Calls
from partage_plugin.configure import load, reload
from partage_plugin.heap import keep_small
from partage_plugin.kubepods import ClusterPods
from partage_plugin.monitor.hub import Hub
from partage_plugin.monitor.reader import Reader
from partage_plugin.monitor.sampler import Sampler
from partage_plugin.node import NodeWriter
from partage_plugin.node_object import KubeNode
from partage_plugin.node_text import Say
from partage_plugin.nvidia_options import nvidia_options
from partage_plugin.places import Places
from partage_plugin.ports import MonotonicClock
from partage_plugin.reports import KubeReports
from partage_plugin.shown import card_figures, held_of, not_ready
from partage_plugin.web import Answers, serve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partage.program import Signals
    from partage_plugin.settings import Settings

MANAGER: Final = "partage-agent"

log = structlog.get_logger("partage.agent")


def run(given: Sequence[str]) -> int:
    """Run the agent with these arguments; return its exit code."""

    async def serve(settings: Settings, signals: Signals) -> None:
        log.info("serving", node=settings.node)
        config = load_config(settings.kubeconfig or None)
        async with Client.connect(config, manager=MANAGER) as client:
            world = _World(settings, given, client)
            with contextlib.closing(world):
                await signals.until_ended(world.run(signals.hangup()))
        log.info("ended; what runs keeps its limits")

    return run_program(log, lambda: _settings(given), serve)


def _settings(given: Sequence[str]) -> Settings:
    settings = load(given, os.environ)
    if not settings.node:
        limit, step = "the node's name is needed", "set NODE_NAME from spec.nodeName, or --node"
        raise UsageError("settings", "no node", limit, step)
    return settings


class _World:
    """The agent with everything real around it."""

    def __init__(self, settings: Settings, argv: Sequence[str], client: Client) -> None:
        self._settings = settings
        self._argv = argv
        self._options = nvidia_options(settings)
        for note in self._options.notes:
            log.warning("settings", note=note)
        driver = _driver(settings)
        if driver is not None:
            log.warning("no real driver is used: the cards are SIMULATED", libraries=str(driver))
        self._clock = clock = MonotonicClock()
        self._calls = calls = Calls(clock)
        self._backend = NvidiaBackend(self._options.options, clock, driver, state=Path(settings.places.root))
        self._pods = ClusterPods(client, settings.node)
        self._reports = KubeReports(client, self._pods, settings.node, calls=calls)
        self._hub = Hub(lambda: _nvml(driver), on_closed=self._on_closed)
        self._loop = asyncio.get_running_loop()
        self.agent = Agent(
            choices=Choices(
                node=settings.node,
                oversub=self._options.oversub,
                preload_by_variable=settings.delivery == "variable",
                safe_mode=settings.whole_card_safe_mode,
                tells_numa=self._options.tells_numa,
                one_card=settings.nvidia.fail_requests_greater_than_one,
            ),
            places=_places(settings),
            backend=self._backend,
            pods=self._pods,
            reports=self._reports,
            watch=self._hub,
            library=Path(settings.library) if settings.library else libraries.find_library(),
            calls=calls,
            clock=clock,
            context_of=context_of if driver is not None else lambda _: None,
            cordoned=self._cordoned,
        )
        self._node = NodeWriter(
            settings.node,
            KubeNode(client, settings.node),
            self.agent.cards,
            clock,
            say=self._say,
            safe=self._safe,
            on_runtime=self._runs_by,
        )
        self.agent.tell_node = self._node.tell
        reader = Reader(lambda: held_of(self.agent), lambda: card_figures(self.agent.cards), use=self._backend.use)
        self._sampler = Sampler(reader.read, clock, present=lambda: frozenset(self.agent.desk.held))

    async def run(self, hangup: asyncio.Event) -> None:
        """Serve until cancelled or something cannot go on."""
        self._hub.start()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pods.run(), name="pods")
            tasks.create_task(self._reports.run(), name="reports")
            tasks.create_task(self.agent.run(), name="agent")
            tasks.create_task(self._node.run(), name="node")
            tasks.create_task(self._sampler.run(), name="figures")
            tasks.create_task(keep_small(self._clock, self._calls), name="heap")
            tasks.create_task(self._reload(hangup), name="settings")
            if self._settings.metrics.port:
                tasks.create_task(self._serve(), name="pages")

    def _on_closed(self, hand_over: str, why: str) -> None:
        """Pass on what a watcher found, from its thread into ours."""
        with contextlib.suppress(RuntimeError):  # we have ended
            self._loop.call_soon_threadsafe(self.agent.ledger_spoilt, hand_over, why)

    async def _serve(self) -> None:
        metrics = self._settings.metrics
        answers = Answers(
            node=self._settings.node,
            figures=self._sampler,
            not_alive=lambda: () if self._hub.is_alive else ("containers are not watched",),
            not_ready=lambda: not_ready(self.agent, self._pods),
            hami_names=metrics.hami_names,
        )
        try:
            await serve(answers, metrics.address, metrics.port)
        except OSError as error:
            subject = f"port {metrics.port} of {metrics.address or 'all addresses'}"
            step = "set metrics.port to a free one, or 0 for none"
            raise LaunchError(
                subject, error.strerror or error, "figures and health are asked for there", step
            ) from error

    def _say(self) -> Say:
        nvidia = self._settings.nvidia
        return Say(
            version=__version__,
            backend=self._backend.name,
            oversub=self._options.oversub,
            labels=nvidia.labels,
            hami=nvidia.hami_annotations,
        )

    async def _cordoned(self) -> frozenset[str]:
        return await self._node.cordoned_now()

    def _runs_by(self, runtime: str) -> None:
        self.agent.runtime = runtime

    def _safe(self) -> tuple[SafeMode, ...]:
        front = self.agent.front
        given = {} if front is None else front.safe_grants()
        return tuple(SafeMode(pod=pod, uuids=uuids) for pod, uuids in given.items())

    async def _reload(self, hangup: asyncio.Event) -> None:
        while True:
            await hangup.wait()
            hangup.clear()
            try:
                found = reload(self._settings, self._argv, os.environ)
                options = nvidia_options(found.settings)
            except UsageError as error:
                log.error("settings are wrong; those before hold on", error=str(error))
                continue
            self._settings, self._options = found.settings, options
            self._backend.configure(options.options)
            configure_logs(found.settings.log_level)
            for change in found.live:
                log.info("setting changed", key=change.key, before=change.before, after=change.after)
            for change in found.later:
                log.warning("setting needs a restart", key=change.key, before=change.before, after=change.after)
            await self.agent.discover()
            await self._node.tell()

    def close(self) -> None:
        """Let go of the watchers and of NVML."""
        self._hub.stop()
        self._backend.close()


def _driver(settings: Settings) -> Path | None:
    """Return the directory of the simulated driver's libraries; None: the real driver's, by their names.

    A node without a driver, or whose driver is loaded later, has no cards yet: only a machine that somebody made is
    simulated without being asked for, since a node of a cluster would offer cards that nothing can compute on.
    """
    if settings.driver == "real" or (settings.driver == "auto" and not machine_path().exists()):
        return None
    return libraries.driver_directory(simulate=settings.driver == "simulated")


def _nvml(driver: Path | None) -> Nvml | None:
    """Return NVML for the watchers; None where it does not answer: overhead is not corrected then."""
    try:
        return Nvml(driver)
    except DeviceError as error:
        log.warning("watchers go without NVML", error=str(error))
        return None


def _places(settings: Settings) -> Places:
    places = settings.places
    return Places(
        root=Path(places.root),
        cdi=Path(places.cdi),
        plugins=Path(places.plugins),
        pod_resources=Path(places.kubelet) / "pod-resources/kubelet.sock",
        library=Path(places.library),
        locks=Path(places.locks),
    )
