"""`partage-plugin`: starts the node agent, in little time and memory.

Pods that want seats fail while no agent is registered, and every node pays for the agent's memory: so what is loaded
and kept, and how its threads take turns, is decided here, before the first import of the program itself (`program`,
where the exit codes are told).
Nothing can go wrong: a limit that is not ours to raise stays.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import sys
from typing import TYPE_CHECKING, Final

from partage._version import __version__
from partage_plugin import heap
from partage_plugin.hidden import hidden

if TYPE_CHECKING:
    from collections.abc import Sequence

_TURN_S: Final = 0.0005
_DESCRIPTORS: Final = 1 << 20


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent, or tell its version; return the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if list(arguments) == ["--version"]:
        sys.stdout.write(f"partage-plugin {__version__}\n")
        return 0
    heap.share()
    _take_descriptors()
    sys.setswitchinterval(_TURN_S)  # kubelet waits for one of our threads: it never waits long for the others
    gc.disable()  # what is imported stays: looking for garbage among it, again and again, takes its time
    with hidden("rich"):  # with which structlog would colour what nobody sees on a terminal
        from partage_plugin.program import run  # noqa: PLC0415 -- after all of the above
    gc.freeze()
    gc.enable()
    return run(arguments)


def _take_descriptors() -> None:
    """Raise the limit as far as we may: each container that runs here takes a dozen, and each process of it one more.

    What a service of systemd begins with, and containers inherit from their runtime, is a thousand.
    """
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


if __name__ == "__main__":
    sys.exit(main())
