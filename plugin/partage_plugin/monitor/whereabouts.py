"""In whose container a process is, by what the kernel says of it: its mounts, and its cgroup.

Called with the pids that the driver names: by those who look for processes past the library and by those who ask what
a container really holds. What can go wrong: a process ends or hides its mounts (then its cgroup alone tells), or the
agent does not see the host's processes (then they are nobody's).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

_PROC: Final = Path("/proc")
_NAME: Final = re.compile(rb"/([0-9a-f]{32})(?= |/)")
_POD: Final = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process is: UIDs of pods in the names of its cgroup, and hand-overs among what it has mounted."""

    pods: frozenset[str] = frozenset()
    hand_overs: frozenset[str] = frozenset()


def place_of(pid: int, proc: Path = _PROC) -> Place:
    """Return where a process is; nowhere where it has ended. It cannot leave its cgroup, though it may hide mounts."""
    try:
        cgroup = (proc / str(pid) / "cgroup").read_text(errors="replace")
    except OSError:
        cgroup = ""
    pods = frozenset(uid.replace("_", "-") for uid in _POD.findall(cgroup))
    return Place(pods, hand_overs_of((pid,), proc))


def hand_overs_of(pids: Collection[int], proc: Path = _PROC) -> frozenset[str]:
    """Return the hand-overs that are mounted for any of these processes; it may name others that look like one."""
    found: set[str] = set()
    for pid in pids:
        try:
            text = (proc / str(pid) / "mountinfo").read_bytes()
        except OSError:
            continue  # it has ended
        found |= {name.decode() for name in _NAME.findall(text)}
    return frozenset(found)
