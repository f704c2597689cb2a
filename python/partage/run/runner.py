"""`partage run`: any program with a share of a device, no Kubernetes.

Promise the share (registry), make the hand-over (policy, turns, ledger), see who takes turns now and that an arbiter
gives them, start the program with the library preloaded, watch until it ends, and return its own exit code. What can go
wrong before the program runs is a PartageError; while it runs, only a program that turns out not to carry the library
is stopped, since it would run without a limit.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from partage.devices.nvidia.nvml import Nvml
from partage.model import Device, LaunchError, PolicyError, Share, UsageError, Wish, names, pick
from partage.run import gates, handover, launch, libraries
from partage.run.arbiter import Keeper, lock_directory
from partage.run.signals import Signals
from partage.run.simulated import choose_machine, context_of
from partage.run.watcher import Watcher
from partage.shm import MAX_DEVICES, Policy, PolicyDevice

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from partage.run.handover import HandOver
    from partage.shm import PolicyFile

_CHECK_FIRST_S: Final = 0.002
_CHECK_LAST_S: Final = 0.1

log = structlog.get_logger("partage.run")


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for. Devices by index or UUID, memory in bytes per device; `sim` a profile or None."""

    program: str
    arguments: tuple[str, ...]
    devices: tuple[str, ...]
    memory: int
    wish: Wish
    sim: str | None = None


@dataclass(frozen=True, slots=True)
class _Ready:
    """All that is known before anything is made."""

    path: Path
    library: Path
    driver: Path | None
    policy: Policy
    cards: dict[str, Device]


def run(request: Request) -> int:
    """Run the program with its share; return its exit code, 128 + n where signal n ended it."""
    outer = os.environ.get(names.ENV_DIR)
    if outer:
        raise LaunchError(
            "partage run", f"runs under the share {outer}", "shares do not nest", "start it outside of it"
        )
    with Nvml(_driver(request)) as nvml:
        return _run(request, nvml)


def _driver(request: Request) -> Path | None:
    directory = libraries.driver_directory(simulate=request.sim is not None)
    if directory is not None:
        choose_machine(request.sim)
        log.info("no real driver is used: the devices are simulated", libraries=str(directory))
    return directory


def _prepare(request: Request, nvml: Nvml) -> _Ready:
    library = libraries.find_library()
    path = launch.resolve(request.program, os.environ)
    launch.check_program(path, library)
    there = nvml.devices()
    cards = list({card.uuid: card for card in (pick(there, wanted) for wanted in request.devices)}.values())
    if len(cards) > MAX_DEVICES:
        raise UsageError("share", f"{len(cards)} devices", f"at most {MAX_DEVICES}", "name fewer devices")
    shares = [request.wish.share_of(card.uuid, request.memory, card.physical) for card in cards]
    driver = libraries.driver_directory(simulate=request.sim is not None)
    policy = policy_for(request.wish, shares, simulated=driver is not None)
    return _Ready(path, library, driver, policy, {card.uuid: card for card in cards})


def policy_for(wish: Wish, shares: Sequence[Share], *, simulated: bool) -> Policy:
    """Return the policy of a container with these shares, in this order."""
    devices = tuple(
        PolicyDevice(
            uuid=share.uuid,
            memory=share.memory,
            physical=share.physical,
            cores=share.cores,
            ceiling=share.ceiling,
            weight=share.weight,
            turn=position,
            context=context_of(share.uuid) if simulated else None,
        )
        for position, share in enumerate(shares)
    )
    return Policy(devices=devices, share_class=wish.resolved_class().value, priority=wish.priority)


def _run(request: Request, nvml: Nvml) -> int:
    ready = _prepare(request, nvml)
    root = handover.user_root()
    with contextlib.ExitStack() as stack:
        with handover.registry(root):  # waiting for it can be interrupted; from here on signals are the program's
            signals = stack.enter_context(contextlib.closing(Signals()))
            entry, policy = handover.create(root, ready.path.stem, ready.policy, ready.cards)
            stack.callback(policy.close)
            watcher = Watcher(entry, policy, nvml)
            stack.callback(_clean_up, entry, watcher)
            keeper = Keeper(root, lock_directory(simulated=ready.driver is not None))
            stack.callback(keeper.close)
            if gates.decide(root):
                keeper.ensure()
        environment = launch.environment_for(
            os.environ, library=ready.library, directory=entry.path, uuids=list(ready.cards), driver=ready.driver
        )
        early = signals.take()  # right before the program: of what comes now it has its own from the terminal
        pid = launch.spawn(ready.path, (request.program, *request.arguments), environment)
        log.info("running", hand_over=entry.name, pid=pid)
        loop = _Loop(pid, ready.library, watcher=watcher, signals=signals, keeper=keeper, policy=policy)
        for number, _ in early:
            loop.pass_on(number)
        return loop.until_end()


def _clean_up(entry: HandOver, watcher: Watcher) -> None:
    """Remove the hand-over unless processes that the program left behind still use it; neighbours may be free again."""
    watcher.settle()
    watcher.close()
    root = entry.path.parent
    try:
        with handover.registry(root):
            if handover.alive([entry]):
                log.info("processes go on under the share; it ends with the last of them", hand_over=entry.name)
            else:
                entry.remove()
            gates.decide(root)
    except PolicyError as error:  # somebody removed the root, as a login's end does: the exit code stays the program's
        log.warning("the hand-over is not cleaned up", hand_over=entry.name, error=str(error))


class _Loop:
    """Waits for the program's end, its signals, its slots, the arbiter, and the proof that the library is in it."""

    def __init__(  # noqa: PLR0913 -- what it waits for
        self, pid: int, library: Path, *, watcher: Watcher, signals: Signals, keeper: Keeper, policy: PolicyFile
    ) -> None:
        self._pid = pid
        self._library = library
        self._watcher = watcher
        self._signals = signals
        self._keeper = keeper
        self._policy = policy
        self._pidfd = os.pidfd_open(pid)
        self._check_in: float | None = _CHECK_FIRST_S
        watcher.selector.register(self._pidfd, selectors.EVENT_READ)
        watcher.selector.register(signals.fd, selectors.EVENT_READ)
        keeper.watch(watcher.selector)

    def until_end(self) -> int:
        """Return the program's exit code; raises LaunchError where it had to be stopped."""
        ended = False
        while not ended:
            for key, _ in self._watcher.selector.select(self._timeout()):
                if key.fd == self._pidfd:
                    ended = True
                elif key.fd == self._signals.fd:
                    self._take_signals()
                elif key.data is self._keeper:
                    self._keeper.ended()
                else:
                    self._watcher.handle(key)
            self._check_injection()
            self._watcher.step()
            self._keeper.step(is_gated=self._policy.is_gated)
        self._keeper.close()
        self._watcher.selector.unregister(self._pidfd)
        self._watcher.selector.unregister(self._signals.fd)
        os.close(self._pidfd)
        _, status = os.waitpid(self._pid, 0)
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code

    def _timeout(self) -> float | None:
        restart = self._keeper.timeout(is_gated=self._policy.is_gated)
        times = [time for time in (self._check_in, self._watcher.timeout(), restart) if time is not None]
        return min(times, default=None)

    def pass_on(self, number: int) -> None:
        """Send the program a signal that came to us."""
        signal.pidfd_send_signal(self._pidfd, number)

    def _take_signals(self) -> None:
        for number, from_terminal in self._signals.take():
            if not from_terminal:
                self.pass_on(number)

    def _check_injection(self) -> None:
        """Look until the loader is through; a program without the library is killed: it would have no limit."""
        if self._check_in is None:
            return
        found = launch.injection(self._pid, self._library)
        if found is launch.Injection.PENDING:
            self._check_in = min(self._check_in * 1.5, _CHECK_LAST_S)
            return
        self._check_in = None
        if found is launch.Injection.MISSING:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            raise LaunchError(
                f"program (pid {self._pid})",
                f"{names.LIBRARY} was not loaded",
                "without it there is no limit, so the program was stopped",
                f"look for ld.so's message above; check {self._library}",
            )
