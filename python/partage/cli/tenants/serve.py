"""How a tenant of the demo is told what to do: one JSON object a line on stdin, one answer a line on stdout.

A tenant knows nothing of shares. It is an ordinary program of its CUDA library that allocates, copies, verifies and
launches when asked to, and reports the library's own error where it is refused. `compute` keeps the device busy until
the next line comes.
"""

from __future__ import annotations

import json
import os
import select
import sys
from typing import Any, Protocol

# From large to small, so that the last success leaves less than one granule of 2 MiB.
STEPS = (1 << 30, 128 << 20, 16 << 20, 2 << 20)


class Tenant(Protocol):
    """What each CUDA library is asked to do."""

    def work(self) -> dict[str, Any]:
        """Copy bytes to the device and back, verify them, launch what the library can launch."""

    def hold(self, size: int) -> str | None:
        """Allocate size bytes and keep them; return the error's name where it is refused."""

    def drop(self) -> None:
        """Free all that is kept."""

    def info(self) -> tuple[int, int]:
        """Return (free, total) bytes as the library tells them."""

    def launch(self) -> None:
        """Launch one kernel, without waiting for it."""

    def finish(self) -> None:
        """Wait until all that was launched is done."""


def fill(tenant: Tenant) -> dict[str, Any]:
    """Allocate until even the smallest step is refused."""
    held, error = 0, None
    for size in STEPS:
        while (error := tenant.hold(size)) is None:
            held += size
    free, total = tenant.info()
    return {"held": held, "error": error, "free": free, "total": total}


def compute(tenant: Tenant) -> dict[str, Any]:
    """Launch kernels without ever waiting for one, until somebody says something."""
    launches = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        tenant.launch()
        launches += 1
    sys.stdin.readline()
    tenant.finish()
    return {"launches": launches}


def answer(tenant: Tenant, command: dict[str, Any]) -> dict[str, Any]:
    """Do one command."""
    match command["do"]:
        case "work":
            return tenant.work()
        case "hold":
            return {"error": tenant.hold(command["bytes"])}
        case "fill":
            return fill(tenant)
        case "drop":
            tenant.drop()
            return {}
        case "info":
            free, total = tenant.info()
            return {"free": free, "total": total}
        case other:
            return {"error": f"unknown command {other}"}


def serve(tenant: Tenant, library: str) -> None:
    """Say who we are, then answer until stdin ends."""
    print(json.dumps({"pid": os.getpid(), "library": library}), flush=True)
    while line := sys.stdin.readline():
        command = json.loads(line)
        found = compute(tenant) if command["do"] == "compute" else answer(tenant, command)
        print(json.dumps(found), flush=True)
