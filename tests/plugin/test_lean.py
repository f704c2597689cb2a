"""The agent's program loads no more than it needs: what it hides from libraries stays out, and is whole elsewhere."""

from __future__ import annotations

import subprocess
import sys

import pytest

from partage_plugin.hidden import hidden


def test_a_hidden_module_cannot_be_imported_and_comes_back() -> None:
    """Inside it is not there; after that it is the same as before."""
    import wave  # noqa: PLC0415 -- any module that nobody else needs

    with hidden("wave"), pytest.raises(ImportError):
        import wave as _  # noqa: PLC0415, F401
    assert sys.modules["wave"] is wave


def test_a_module_that_was_not_loaded_can_be_loaded_after() -> None:
    """Hiding leaves no trace of a module that nobody had loaded, even where the import inside failed."""
    sys.modules.pop("this_is_none", None)
    with pytest.raises(ImportError), hidden("this_is_none"):
        import this_is_none  # type: ignore[import-not-found]  # noqa: PLC0415, F401
    assert "this_is_none" not in sys.modules


def test_the_program_is_without_what_it_does_not_need() -> None:
    """Neither colours nor a whole web framework: every node pays for what is loaded."""
    code = """
import partage_plugin.main, sys
sys.argv = ["partage-plugin", "--node="]
assert partage_plugin.main.main(["--config=/nowhere"]) == 2
loaded = [name for name in ("rich", "pygments", "aiohttp", "prometheus_client") if name in sys.modules]
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_k12_the_program_may_open_as_many_files_as_its_containers_need() -> None:
    """A service begins with a thousand, and a hundred containers take more: the agent takes what it is allowed."""
    code = """
import resource
from partage_plugin import main
for limits in ((256, 4096), (4096, 4096)):
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    main._take_descriptors()
    print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout == "(4096, 4096)\n" * 2


def test_what_was_used_is_given_back() -> None:
    """Pieces that lie between others that stay: malloc keeps their pages until it is told."""
    code = """
import ctypes
from partage_plugin import heap

def resident():
    fields = open("/proc/self/statm").read().split()
    return (int(fields[1]) - int(fields[2])) * 4096

heap.share()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
pieces = []
for _ in range(1000):
    pieces.append(libc.malloc(64 << 10))
    ctypes.memset(ctypes.c_void_p(pieces[-1]), 1, 64 << 10)
    libc.malloc(64)
full = resident()
for piece in pieces:
    libc.free(piece)
kept = resident()
heap.give_back()
print(full - kept < 8 << 20, full - resident() > 32 << 20)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout == "True True\n"
