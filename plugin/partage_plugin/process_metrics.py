"""The agent's own process as every exporter shows it: processor time, memory, descriptors, start.

Called by `web.py` at each scrape; the names are those that Prometheus' client libraries agree on. What can go wrong:
/proc is not there or is hidden (the series that come from it are left out).
"""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path
from typing import Final

from partage.text_format import Number, family

_PROC: Final = Path("/proc")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/self/stat behind the command's name: user and system time, threads, start, sizes.
_USER, _SYSTEM, _THREADS, _START, _VIRTUAL, _RESIDENT = 11, 12, 17, 19, 20, 21


def process_families(proc: Path = _PROC) -> str:
    """Return the families of this process."""
    values: dict[str, tuple[str, str, Number]] = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        stat = [int(part) for part in (proc / "self/stat").read_text().rpartition(")")[2].split()[1:]]
        fields = [0, *stat]  # the state, a letter, is left out
        boot = next(line for line in (proc / "stat").read_text().splitlines() if line.startswith("btime"))
        values |= {
            "cpu_seconds_total": (
                "counter",
                "Processor time of the agent, user and system.",
                (fields[_USER] + fields[_SYSTEM]) / _TICKS,
            ),
            "virtual_memory_bytes": ("gauge", "Address space of the agent.", fields[_VIRTUAL]),
            "resident_memory_bytes": ("gauge", "Resident memory of the agent.", fields[_RESIDENT] * _PAGE),
            "threads": ("gauge", "Threads of the agent.", fields[_THREADS]),
            "start_time_seconds": (
                "gauge",
                "When the agent started, since the epoch.",
                int(boot.split()[1]) + fields[_START] / _TICKS,
            ),
        }
    with contextlib.suppress(OSError):
        values["open_fds"] = ("gauge", "Descriptors that the agent has open.", len(os.listdir(proc / "self/fd")))  # noqa: PTH208
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    values["max_fds"] = ("gauge", "Descriptors that the agent may have open.", limit)
    return "".join(family(f"process_{name}", kind, text, [("", value)]) for name, (kind, text, value) in values.items())
