"""The places in a container where its limits are held: nothing of its own may be mounted there.

A container runtime mounts what a pod's author asks for after what a device plugin answered, and over it where the path
is the same: an empty file over the preload file would be the end of every limit. Not volumes alone: kubelet mounts an
empty file for the message that a container leaves at its end, too, wherever its spec says. Asked by admission, so that
the author hears of it, and by the node agent, which starts no such container whoever made its pod. Cannot fail. A
directory above such a place does no harm, since deeper ones are mounted later.
"""

from __future__ import annotations

import posixpath
from typing import Final

from partage.model.names import CONTAINER_LIBRARY, HOST_ROOT

#: What loaders read before all else. That of nixpkgs reads the second and not the first, and is in all images of Nix's.
PRELOAD_FILES: Final = ("/etc/ld.so.preload", "/etc/ld-nix.so.preload")
GUARDED: Final = (*PRELOAD_FILES, CONTAINER_LIBRARY, HOST_ROOT)
_RUN: Final = "/var/run/"  # in nearly all images a link to /run


def guarded(path: str) -> str | None:
    """Return the place that a mount at this path of a container would cover; None where there is none."""
    clean = posixpath.normpath("/" + path.lstrip("/"))
    clean = "/run/" + clean.removeprefix(_RUN) if clean.startswith(_RUN) else clean
    return next((place for place in GUARDED if clean == place or clean.startswith(place + "/")), None)
