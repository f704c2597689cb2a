"""Where the agent finds and puts things on the host. The defaults are the product's; tests give their own."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from partage.model import names
from partage_plugin.kubelet.register import DIRECTORY


@dataclass(frozen=True, slots=True)
class Places:
    """Directories and sockets; all absolute."""

    root: Path = Path(names.HOST_ROOT)
    cdi: Path = Path(names.CDI_DIRECTORY)
    plugins: Path = Path(DIRECTORY)  # fixed in kubelet
    pod_resources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    library: Path = Path(names.HOST_LIBRARY_DIRECTORY)
    locks: Path = Path(names.LOCK_DIRECTORIES[0])

    def removed(self) -> Path | None:
        """Return one of the directories that nobody else reaches any more; None where there is none.

        They are mounted from the host: where one is removed and made again there, what is written here is lost.
        """
        for path in (self.root, self.cdi, self.plugins, self.library, self.locks):
            with contextlib.suppress(OSError):
                if path.stat().st_nlink == 0:
                    return path
        return None
