"""The arbiter of this node, in our own process: native code on threads of its own, no Python on the path of a turn.

One serves a root of hand-overs at a time. Where another one does (a `partage-arbiter` started by hand, a predecessor
that has not ended yet), who that is is logged and it is waited for; containers live by their private buckets meanwhile.
What can go wrong: the root is not ours, or no lock directory (LaunchError).
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Final

import structlog

from partage._abi import ffi, lib
from partage.model import LaunchError

if TYPE_CHECKING:
    from pathlib import Path

    from partage_plugin.ports import Clock

AGAIN_S: Final = 1.0
_WHY: Final = 1024  # bytes of a reason
_SERVED: Final = "served by"

log = structlog.get_logger("partage.arbiter")


class Arbiter:
    """The host of turns for one root; `run` is its whole life."""

    def __init__(self, root: Path, lock_dir: Path, clock: Clock) -> None:
        self._root = root
        self._lock_dir = lock_dir
        self._clock = clock
        self._host: Any = None

    @property
    def is_serving(self) -> bool:
        """Whether we give turns."""
        return self._host is not None

    def stats(self) -> dict[str, int]:
        """Return what the host counts (hook/arbiter/host.h); empty where it does not serve."""
        if self._host is None:
            return {}
        stats = ffi.new("struct ptg_host_stats *")
        lib.ptg_host_stats(self._host, stats)
        return {name: int(getattr(stats, name)) for name, _ in ffi.typeof("struct ptg_host_stats").fields}

    async def run(self) -> None:
        """Serve until cancelled; raises LaunchError where that cannot be."""
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        told = False
        try:
            while self._host is None:
                why = self._open(writer)
                if why is None:
                    break
                if not why.startswith(_SERVED):
                    step = "give the agent its directories as its manifest says"
                    raise LaunchError(str(self._root), why, "turns are given from there", step)
                if not told:
                    log.warning("another arbiter serves; waiting for its end", root=str(self._root), owner=why)
                told = True
                await self._clock.sleep(AGAIN_S)
            log.info("arbiter serves", root=str(self._root), locks=str(self._lock_dir))
            await self._pass_on(reader)
        finally:
            host, self._host = self._host, None
            if host is not None:
                lib.ptg_host_close(host)
            os.close(writer)
            os.close(reader)

    def _open(self, log_fd: int) -> str | None:
        """Open and start the host; return why not."""
        root, lock_dir = (ffi.new("char[]", os.fsencode(path)) for path in (self._root, self._lock_dir))
        options = ffi.new("struct ptg_host_options *")
        options.root, options.lock_dir, options.idle_ns = root, lock_dir, lib.PTG_HOST_FOREVER
        options.log_fd, options.flags = log_fd, 0
        why = ffi.new(f"char[{_WHY}]")
        host = lib.ptg_host_open(options, why, _WHY)
        if host == ffi.NULL:
            return bytes(ffi.string(why)).decode("utf-8", "replace")
        lib.ptg_host_adopt(host)
        result = lib.ptg_host_start(host)
        if result < 0:
            lib.ptg_host_close(host)
            return os.strerror(-result)
        self._host = host
        return None

    async def _pass_on(self, reader: int) -> None:
        """Log what the host says, until cancelled."""
        loop = asyncio.get_running_loop()
        lines: asyncio.Queue[bytes] = asyncio.Queue()
        loop.add_reader(reader, lambda: lines.put_nowait(os.read(reader, 1 << 16)))
        try:
            while text := await lines.get():
                for line in text.decode("utf-8", "replace").splitlines():
                    log.info("arbiter", says=line)
        finally:
            loop.remove_reader(reader)
