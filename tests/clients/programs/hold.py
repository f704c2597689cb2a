"""Holds device memory while another program runs: hold.py BYTES -- PROGRAM ARGUMENT...

Takes BYTES on device 0, starts the program in the same environment and ends with its exit code. Without a program it
prints its process id and holds the memory until its input is closed.
"""

import os
import subprocess
import sys

from cuda.bindings import driver

driver.cuInit(0)
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
error, pointer = driver.cuMemAlloc(int(sys.argv[1]))
assert error == driver.CUresult.CUDA_SUCCESS, error
if sys.argv[2:3] == ["--"]:
    sys.exit(subprocess.run(sys.argv[3:], check=False).returncode)
print(os.getpid(), flush=True)
sys.stdin.read()
