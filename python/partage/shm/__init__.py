"""The three files of a hand-over, through the same C structures that libvgpu.so maps.

`policy` (we write, tenants read), `ledger` (tenants write, we read and reclaim), `turns` (the arbiter writes).
"""

from partage.shm.bell import ring_turn_bell
from partage.shm.doorbells import Doorbells
from partage.shm.files import OPEN_FLAGS
from partage.shm.late_policy import LatePolicy
from partage.shm.ledger import Ledger, LedgerDevice, Slot, SlotDevice, WatchedLedger, create_ledger, read_ledger
from partage.shm.policy import MAX_DEVICES, Policy, PolicyDevice, PolicyFile, read_policy
from partage.shm.turn_lines import SlotTurn, read_turn_lines
from partage.shm.turns import Turn, Turns, create_turns, read_turns, read_turns_size

__all__ = [
    "MAX_DEVICES",
    "OPEN_FLAGS",
    "Doorbells",
    "LatePolicy",
    "Ledger",
    "LedgerDevice",
    "Policy",
    "PolicyDevice",
    "PolicyFile",
    "Slot",
    "SlotDevice",
    "SlotTurn",
    "Turn",
    "Turns",
    "WatchedLedger",
    "create_ledger",
    "create_turns",
    "read_ledger",
    "read_policy",
    "read_turn_lines",
    "read_turns",
    "read_turns_size",
    "ring_turn_bell",
]
