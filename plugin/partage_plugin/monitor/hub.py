"""One thread that runs the watchers of all open hand-overs: slots, dead processes, overhead, audit.

The watcher itself is the one of `partage run` (partage.run.watcher); here its events are waited for together, so that a
hundred containers cost one thread's sleep. The agent's loop adds and removes, and never waits for this thread: NVML may
take milliseconds on a busy card, and kubelet's calls must not feel that. One agent runs on
a node, so a lock on a ledger's byte of the watcher is its tenant's, and keeps nobody off. What can go wrong: a ledger
that its tenant spoilt, before or while it is watched (the container is closed, and `on_closed` hears why, in that
thread), a ledger that cannot be opened for now (tried again), a policy that cannot be changed for now (the dead are
found meanwhile), descriptors that are used up (likewise). Whatever else fails about one hand-over is a defect, logged
in full, and keeps no other from being watched; were the thread to end all the same, `is_alive` says so.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import selectors
import threading
import time
from typing import TYPE_CHECKING, Final

import structlog

from partage.model import LedgerBusyError, LedgerError, PartageError
from partage.run.watcher import Watcher
from partage.shm import Doorbells, LatePolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from partage.devices.nvidia.nvml import Nvml
    from partage.run.handover import HandOver

RETRY_S: Final = 1.0  # a ledger that cannot be watched
TOGETHER_S: Final = 0.5
AT_ONCE: Final = 8  # looks that have time; then the interpreter is others' for a moment: kubelet may wait for them
APART_S: Final = 0.002
_JOIN_S: Final = 10.0

log = structlog.get_logger("partage.watcher")


def together(due: float, wait: float) -> float:
    """Return when to do what is due then: looks that have time are put off until others are due as well."""
    return due if wait < TOGETHER_S else math.ceil(due / TOGETHER_S) * TOGETHER_S


class _Watched:
    """One hand-over with its watcher, or without one that could not begin yet."""

    def __init__(self, entry: HandOver) -> None:
        self.entry = entry
        self.watcher: Watcher | None = None
        self.policy: LatePolicy | None = None
        self.due = 0.0
        self.is_told = False  # that it was closed, and why
        self.late = ""  # why it could not begin or go on, as it was said last

    def begin(self, nvml: Nvml | None, bells: Doorbells) -> str:
        """Start watching; return why the container was closed instead where its ledger is spoilt.

        Raises PartageError where neither can be done now; nothing is left open then.
        """
        with contextlib.ExitStack() as half_made:
            policy = LatePolicy(self.entry.policy_path)
            half_made.callback(policy.close)
            try:
                self.watcher = Watcher(self.entry, policy, nvml, sole=True, bells=bells)
            except LedgerBusyError:
                raise
            except LedgerError as error:
                policy.shut()
                return str(error)
            self.policy = policy
            half_made.pop_all()
        return ""

    def end(self) -> None:
        """Let everything go."""
        if self.watcher is not None:
            self.watcher.close()
        if self.policy is not None:
            self.policy.close()
        self.watcher = self.policy = None


class Hub:
    """Watches hand-overs in a thread of its own, from `start` to `stop`; any thread may `add` and `remove`."""

    def __init__(
        self,
        nvml: Callable[[], Nvml | None],
        now: Callable[[], float] = time.monotonic,
        on_closed: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        self._make_nvml = nvml
        self._on_closed = on_closed
        self._now = now
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._watched: dict[str, _Watched] = {}
        self._pause = 0.0  # before the looks that were left for the next round
        self._nvml: Nvml | None = None
        self._bells = Doorbells()
        self._thread = threading.Thread(target=self._run, name="watchers", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, with every watch let go; what runs goes on."""
        self._orders.put(None)
        os.eventfd_write(self._bell, 1)
        self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            bell, self._bell = self._bell, -1  # not closed by the thread: it may end before it is rung for
            os.close(bell)

    @property
    def is_alive(self) -> bool:
        """Whether it watches."""
        return self._thread.is_alive()

    def add(self, entry: HandOver) -> None:
        """Watch a hand-over from now on; one that is watched already stays so."""
        self._order(lambda: self._add(entry))

    def remove(self, name: str) -> None:
        """Watch it no longer."""
        self._order(lambda: self._remove(name))

    def _order(self, order: Callable[[], None]) -> None:
        self._orders.put(order)
        if self._bell >= 0:  # else all is over
            os.eventfd_write(self._bell, 1)

    # ---- in the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._take_orders():
                self._round(self._selector.select(self._timeout()))
        finally:
            for name in list(self._watched):
                self._remove(name)
            self._bells.close()
            if self._nvml is not None:
                self._nvml.close()
            self._selector.close()

    def _take_orders(self) -> bool:
        """Do what was asked for; False where that is to end."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        while not self._orders.empty():
            order = self._orders.get()
            if order is None:
                return False
            order()
        return True

    def _timeout(self) -> float | None:
        """Return the seconds until the first watcher has work of its own; None where none will."""
        due = min((watched.due for watched in self._watched.values()), default=math.inf)
        return None if due == math.inf else max(self._pause, due - self._now())

    def _round(self, ready: list[tuple[selectors.SelectorKey, int]]) -> None:
        rung = {key.data for key, _ in ready if key.data is not None}
        now, looks = self._now(), 0
        for name, watched in self._watched.items():
            if watched.watcher is not None and name in rung:
                self._step(watched, watched.watcher, has_events=True)
            elif watched.due <= now:
                looks += 1
                if looks > AT_ONCE:
                    continue
                if watched.watcher is None:
                    self._begin(watched)
                else:
                    self._step(watched, watched.watcher, has_events=False)
        self._pause = APART_S if looks > AT_ONCE else 0.0

    def _step(self, watched: _Watched, watcher: Watcher, *, has_events: bool) -> None:
        try:
            for key, _ in watcher.selector.select(0) if has_events else ():
                watcher.handle(key)
            watcher.step()
        except Exception as error:  # a tenant that has found a defect of ours blinds nobody but itself
            self._failed(watched, error, "a watcher cannot go on for now")
        else:
            timeout = watcher.timeout()
            watched.due = math.inf if timeout is None else together(self._now() + timeout, timeout)
        self._tell(watched, watcher.trouble)

    def _failed(self, watched: _Watched, error: Exception, what: str) -> None:
        """Say once what cannot be done for now, a defect in full; it is tried again."""
        if str(error) != watched.late:
            is_defect = not isinstance(error, (PartageError, OSError))
            log.warning(what, hand_over=watched.entry.name, error=str(error), exc_info=error if is_defect else None)
        watched.late = str(error)
        watched.due = self._now() + RETRY_S

    def _tell(self, watched: _Watched, trouble: str) -> None:
        if trouble and not watched.is_told:
            watched.is_told = True
            self._on_closed(watched.entry.name, trouble)

    def _add(self, entry: HandOver) -> None:
        if entry.name not in self._watched:
            watched = self._watched[entry.name] = _Watched(entry)
            self._begin(watched)

    def _begin(self, watched: _Watched) -> None:
        try:
            if self._nvml is None:  # the driver may come long after us, though not after the first container
                self._nvml = self._make_nvml()
            trouble = watched.begin(self._nvml, self._bells)
        except Exception as error:  # likewise
            self._failed(watched, error, "a hand-over cannot be watched yet")
            return
        if watched.watcher is None:
            log.warning("ledger cannot be used; the container is closed", error=trouble)
            self._tell(watched, trouble)
            watched.due = math.inf
            return
        self._selector.register(watched.watcher.selector, selectors.EVENT_READ, watched.entry.name)
        watched.due = 0.0

    def _remove(self, name: str) -> None:
        watched = self._watched.pop(name, None)
        if watched is None:
            return
        if watched.watcher is not None:
            self._selector.unregister(watched.watcher.selector)
        watched.end()
