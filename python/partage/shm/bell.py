"""The bell that an arbiter sleeps on: rung after a policy was changed, so that the change holds at once.

Called by whoever writes policies (`run.gates`, the agent). What can go wrong: the ledger with the bell is missing or
cut by its tenant (LedgerError); the arbiter then sees the change at its next round.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from partage._abi import lib
from partage.model import LedgerError
from partage.shm.files import OPEN_FLAGS

if TYPE_CHECKING:
    from pathlib import Path


def ring_turn_bell(ledger: Path) -> None:
    """Tell the arbiter of this ledger's hand-over to look at it; raises LedgerError."""
    limit, step = "a ledger that its tenant leaves whole", "the arbiter sees the change when it looks next"
    try:
        fd = os.open(ledger, os.O_RDWR | OPEN_FLAGS)
    except OSError as error:
        raise LedgerError(f"bell of {ledger}", error.strerror or error, limit, step) from error
    try:
        result = lib.ptg_guard_install() or lib.ptg_turn_bell_ring(fd)
    finally:
        os.close(fd)
    if result < 0:
        raise LedgerError(f"bell of {ledger}", os.strerror(-result), limit, step)
