"""Socket files in kubelet's directory: what tells one from another of the same name, and whether anybody listens.

Asked by the registrar of kubelet's socket and ours, and of those of other plugins before they are called. Cannot fail:
what cannot be looked at is not there.
"""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells a socket file from another one of the same name.

    Made when, and not changed when: new rights or labels, of a whole tree perhaps, make no other socket of it, and a
    kubelet that follows us takes no second registration.
    """

    inode: int
    made_ns: int


def identity(path: Path) -> Identity | None:
    """Return what is at `path` now; None where nothing is."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return Identity(found.st_ino, found.st_mtime_ns)


def is_deaf(path: Path) -> bool:
    """Whether nobody listens at a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(os.fspath(path))
        except OSError as error:
            return error.errno == errno.ECONNREFUSED
    return False
