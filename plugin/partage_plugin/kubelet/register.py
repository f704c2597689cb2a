"""Serving and registering: a level-triggered loop around kubelet.sock and our own socket.

Serve first, then rebuild what kubelet's checkpoint names, then register; again whenever kubelet.sock is another one or
our own socket vanished (a kubelet that starts removes all sockets in its directory). inotify tells at once; a slow look
finds what an event was lost for, and a look each second replaces it where the machine's instances or watches are used
up (`fs.inotify.*` are one sum for all programs of a user). The first registration with a new kubelet is made at once,
only repeats are spaced.

Each instance serves on a socket name of its own, so that an old agent and its successor never remove each other's. No
name is given to kubelet twice: one that has it refuses and forgets that it follows us (1.37), and then it does not see
our end and counts seats of nobody. A kubelet whose socket somebody removed still follows us and takes no registration:
what it follows is served on. A plugin of somebody else that serves the same cards is named and not fought over. What
can go wrong: kubelet does not answer (asked again, ever less often up to 5 s), no right in its directory
(RegistrationError ends the agent).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from typing import TYPE_CHECKING, Final

import grpc
import structlog
from asyncinotify import Inotify, Mask

from partage.model import PartageError
from partage_plugin.kubelet.foreign import Neighbours
from partage_plugin.kubelet.server import options
from partage_plugin.kubelet.sockets import identity, is_deaf
from partage_plugin.proto.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from partage_plugin.kubelet.server import DevicePlugin
    from partage_plugin.kubelet.sockets import Identity
    from partage_plugin.ports import Clock

DIRECTORY: Final = "/var/lib/kubelet/device-plugins"  # fixed in kubelet
KUBELET_SOCKET: Final = "kubelet.sock"
VERSION: Final = "v1beta1"
OURS: Final = "partage-"
APART_S: Final = 1.0  # between two registrations with kubelets that follow each other
LOOK_EVERY_S: Final = 10.0
LOOK_BLIND_S: Final = 1.0  # without inotify
ANSWER_S: Final = 5.0
AGAIN_FIRST_S: Final = 0.05
AGAIN_LAST_S: Final = 5.0
FOLLOWED_S: Final = 5.0  # by then a kubelet that took the registration follows our list
_EVENT: Final = struct.Struct("iIII")  # of inotify: watch, mask, cookie, bytes of the name
_EVENTS_MAX: Final = 16384  # bytes
_GRACE_S: Final = 0.2  # for calls in progress when a socket is given up

log = structlog.get_logger("partage.kubelet")


class RegistrationError(PartageError):
    """Kubelet's directory cannot be used."""


async def _nothing() -> None:
    """Do nothing."""


class Registrar:
    """One resource's registration; `run` is its whole life."""

    def __init__(  # noqa: PLR0913 -- its neighbours
        self,
        *,
        directory: Path,
        resource: str,
        plugin: DevicePlugin,
        rebuild: Callable[[], Awaitable[None]],
        clock: Clock,
        is_ours: Callable[[str], bool] = lambda _: False,
        on_registered: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        self._directory = directory
        self._resource = resource
        self._plugin = plugin
        self._rebuild = rebuild
        self._clock = clock
        self._is_ours = is_ours
        self._neighbours = Neighbours(directory, resource, ours=OURS, kubelet=KUBELET_SOCKET)
        self._on_registered = on_registered
        self._served = 0
        self._server: grpc.aio.Server | None = None
        self._former: grpc.aio.Server | None = None  # that kubelet follows still, though its socket is gone
        self._look_every = LOOK_EVERY_S
        self._socket: Path | None = None
        self._socket_is: Identity | None = None
        self._kubelet: Identity | None = None  # that took our registration
        self._registered_at: float | None = None
        self._given: Path | None = None  # the socket whose name a kubelet has, or may have
        self._registrations = 0
        self._failures = 0
        self._foreign: str | None = None
        self._wake = asyncio.Event()

    @property
    def is_registered(self) -> bool:
        """Whether a kubelet follows our list."""
        return self._kubelet is not None and self._plugin.streams > 0

    @property
    def registrations(self) -> int:
        """How often a kubelet has taken our registration."""
        return self._registrations

    @property
    def foreign(self) -> str | None:
        """The socket of another plugin that serves the same cards; None where there is none."""
        return self._foreign

    async def run(self) -> None:
        """Serve, register, and stay so until cancelled."""
        try:
            with contextlib.ExitStack() as watched:
                events = self._watch(watched)
                async with asyncio.TaskGroup() as tasks:
                    if events is not None:
                        tasks.create_task(self._listen(events), name="device plugin directory")
                    tasks.create_task(self._loop(), name="registration")
        finally:
            await self._give_up()

    def _watch(self, watched: contextlib.ExitStack) -> Inotify | None:
        """Make the directory ready; return its events, None where the machine has none to give."""
        try:
            self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._remove_leftovers()
        except OSError as error:
            step = "mount kubelet's device plugin directory into the agent, writable"
            raise RegistrationError(
                str(self._directory), error.strerror or error, "shares are registered there", step
            ) from error
        mask = Mask.CREATE | Mask.MOVED_TO | Mask.DELETE | Mask.MOVED_FROM | Mask.ATTRIB
        try:
            events = watched.enter_context(Inotify())
            events.add_watch(self._directory, mask | Mask.ONLYDIR)
        except OSError as error:
            step = "raise fs.inotify.max_user_instances and max_user_watches"
            log.warning("no inotify; kubelet is looked for each second", error=error.strerror or str(error), step=step)
            self._look_every = LOOK_BLIND_S
            return None
        return events

    async def _listen(self, events: Inotify) -> None:
        """Wake the loop at what is ours, until cancelled. Read by hand: kubelet's checkpoint is written here, too."""
        loop = asyncio.get_running_loop()
        loop.add_reader(events.fd, self._take_events, events.fd)
        try:
            await loop.create_future()
        finally:
            loop.remove_reader(events.fd)

    def _take_events(self, fd: int) -> None:
        ours = {b"", KUBELET_SOCKET.encode()} | (set() if self._socket is None else {os.fsencode(self._socket.name)})
        if not ours.isdisjoint(names_in(os.read(fd, _EVENTS_MAX))):
            self._wake.set()

    async def _loop(self) -> None:
        while True:
            self._wake.clear()
            delay = min(await self._step(), self._look_every)
            with contextlib.suppress(TimeoutError):
                await self._until_woken(delay)

    async def _until_woken(self, delay: float) -> None:
        """Return after `delay` seconds, or as soon as a file or a follower changes."""
        waits = [
            asyncio.ensure_future(wait)
            for wait in (self._wake.wait(), self._plugin.streams_changed(), self._clock.sleep(delay))
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _step(self) -> float:
        """Do what is missing; return in how many seconds to look again at the latest."""
        if self._socket is None or self._socket_is is None or identity(self._socket) != self._socket_is:
            await self._serve()
        kubelet = identity(self._directory / KUBELET_SOCKET)
        if kubelet is None:
            self._kubelet = None
            return LOOK_EVERY_S
        if kubelet == self._kubelet and self._plugin.streams > 0:
            return LOOK_EVERY_S
        early = self._too_early(is_new=kubelet != self._kubelet)
        if early > 0:
            return early
        return await self._register(kubelet)

    def _too_early(self, *, is_new: bool) -> float:
        """Return the seconds to wait before another registration; the first one with a kubelet never waits."""
        if self._registered_at is None:
            return 0.0
        return self._registered_at + (APART_S if is_new else FOLLOWED_S) - self._clock.now()

    async def _register(self, kubelet: Identity) -> float:
        if self._socket == self._given:
            await self._serve()
        await self._let_former_go()
        await self._rebuild()
        self._foreign = await self._neighbours.find(self._is_ours)
        if self._foreign is not None:
            log.error(
                "another device plugin serves these cards; not registered",
                resource=self._resource,
                socket=self._foreign,
                step="remove that plugin from this node (its DaemonSet), or this agent",
            )
            return AGAIN_LAST_S
        if identity(self._directory / KUBELET_SOCKET) != kubelet or self._socket is None:
            return 0.0
        if not await self._ask(self._socket):
            self._failures += 1
            return float(min(AGAIN_FIRST_S * 2 ** min(self._failures - 1, 16), AGAIN_LAST_S))
        self._failures = 0
        self._kubelet = kubelet
        self._registered_at = self._clock.now()
        self._registrations += 1
        log.info("registered", resource=self._resource, socket=self._socket.name)
        await self._on_registered()
        return FOLLOWED_S

    async def _ask(self, served: Path) -> bool:
        """Ask kubelet to take us; False where it does not."""
        path = self._directory / KUBELET_SOCKET
        options_ = [("grpc.enable_http_proxy", 0)]
        async with grpc.aio.insecure_channel(f"unix://{path}", options=options_) as channel:
            request = api_pb2.RegisterRequest(
                version=VERSION, endpoint=served.name, resource_name=self._resource, options=options()
            )
            try:
                await api_pb2_grpc.RegistrationStub(channel).Register(request, timeout=ANSWER_S)
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:  # it was asked
                    self._given = served
                log.info("kubelet does not take the registration yet", error=error.details(), socket=str(path))
                return False
        self._given = served
        return True

    # ---- our own socket ------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Serve on a new socket; one that vanished under us is given up once kubelet takes another, or follows none."""
        old = self._server
        again = f".{self._served}" if self._served else ""
        name = f"{OURS}{self._resource.replace('/', '-')}-{os.getpid()}{again}.sock"
        self._served += 1
        path = self._directory / name
        path.unlink(missing_ok=True)  # of an earlier process with our number: we are alone with it now
        server = grpc.aio.server()
        api_pb2_grpc.add_DevicePluginServicer_to_server(self._plugin, server)
        try:
            server.add_insecure_port(f"unix://{path}")
        except RuntimeError as error:
            step = "free space there, or mount kubelet's device plugin directory writable"
            raise RegistrationError(str(path), error, "kubelet calls us there", step) from error
        self._server, self._socket = server, path
        await server.start()
        with contextlib.suppress(FileNotFoundError):  # a kubelet that starts has just removed it
            path.chmod(0o600)
        self._socket_is = identity(path)
        self._kubelet = None
        log.info("serving", socket=str(path))
        if self._former is None and self._plugin.streams > 0:
            self._former = old
        elif old is not None:
            await old.stop(0)

    async def _let_former_go(self) -> None:
        """End what kubelet followed, before it is asked anew: it takes the end of the former for that of the latter."""
        former, self._former = self._former, None
        if former is not None:
            await former.stop(0)

    async def _give_up(self) -> None:
        """Stop serving. gRPC removes the file of that name, whoever made it: only ours has ever had it."""
        servers = (self._former, self._server)
        self._former = self._server = None
        await asyncio.gather(*(server.stop(_GRACE_S) for server in servers if server is not None))

    def _remove_leftovers(self) -> None:
        """Remove sockets of killed agents: those at which nobody listens, and only while they are the same."""
        for path in self._directory.glob(f"{OURS}{self._resource.replace('/', '-')}-*.sock"):
            before = identity(path)
            if before is not None and is_deaf(path) and identity(path) == before:
                path.unlink(missing_ok=True)
                log.info("removed the socket of an agent that is no more", socket=str(path))


def names_in(events: bytes) -> Iterator[bytes]:
    """Yield the file that each event of inotify is about; empty: the directory itself, or events were lost."""
    at = 0
    while at < len(events):
        *_, size = _EVENT.unpack_from(events, at)
        at += _EVENT.size + size
        yield events[at - size : at].rstrip(b"\0")
