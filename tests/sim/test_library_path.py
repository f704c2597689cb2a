"""The simulated driver is never what a program finds by itself: only who names its directory gets it."""

import os
import subprocess
import sys

import pytest

PROBE = """
import ctypes, sys
try:
    ctypes.CDLL(sys.argv[1])
except OSError:
    sys.exit(0)
loaded = [line.split()[-1] for line in open("/proc/self/maps") if sys.argv[1] in line]
sys.exit("partage" in open(loaded[0], "rb").read().decode("latin-1"))
"""


@pytest.mark.parametrize("library", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_not_on_the_default_path(library: str) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LD_")}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, library], check=False, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{library} without LD_LIBRARY_PATH is the simulated one: {done.stderr}"
