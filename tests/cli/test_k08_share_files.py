"""We test these aspects of a share whose files or environment are tampered with while it runs (kinds K08 and K09; D8,
D19): the program is never given more than its share, nor is one that starts afterwards; whatever it did to its own
files, its neighbour on the card, the watchers and the command line go on as if nothing had happened; nobody hangs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from partage.shm import Policy, PolicyDevice, PolicyFile, read_policy

from .conftest import HOLDER, WAIT_S

if TYPE_CHECKING:
    from collections.abc import Callable

GIB = 1 << 30
OUT_OF_MEMORY = 2


def truncate(name: str, size: int) -> Callable[[Path], None]:
    return lambda share: os.truncate(share / name, size)


def remove(name: str) -> Callable[[Path], None]:
    return lambda share: (share / name).unlink()


def overwrite(name: str, start: int, data: bytes) -> Callable[[Path], None]:
    def write(share: Path) -> None:
        with (share / name).open("r+b") as file:
            file.seek(start)
            file.write(data)

    return write


def replace_by_directory(name: str) -> Callable[[Path], None]:
    def replace(share: Path) -> None:
        (share / name).unlink()
        (share / name).mkdir()

    return replace


def replace_by_own(name: str, size: int) -> Callable[[Path], None]:
    """A file of the tenant's making in the place of ours."""

    def replace(share: Path) -> None:
        (share / name).unlink()
        (share / name).write_bytes(b"\0" * size)

    return replace


#: What a tenant may do to the files of its own share. Some of it kills its own processes; nothing gives it more.
DAMAGE = {
    "ledger removed": remove("ledger"),
    "ledger emptied": truncate("ledger", 0),
    "ledger cut": truncate("ledger", 4096),
    "ledger zeroed": overwrite("ledger", 0, b"\0" * (8192 + 4096)),
    "ledger foreign": overwrite("ledger", 0, b"x" * (8192 + 4096)),
    "ledger of another version": overwrite("ledger", 8, b"\x63\0\0\0"),
    "ledger full of nonsense": overwrite("ledger", 4096, b"\xff" * 4096),
    "ledger replaced": replace_by_own("ledger", 0),
    "ledger a directory": replace_by_directory("ledger"),
    "ledger read-only": lambda share: (share / "ledger").chmod(0o400),
    "policy removed": remove("policy"),
    "policy emptied": truncate("policy", 0),
    "policy cut": truncate("policy", 100),
    "policy foreign": overwrite("policy", 0, b"x" * 512),
    "policy of another version": overwrite("policy", 8, b"\x63\0\0\0"),
    "policy with a larger limit": overwrite("policy", 64 + 64, (64 * GIB).to_bytes(8, "little")),
    "policy for ever half-written": overwrite("policy", 16, b"\x07\0\0\0"),
    "policy a directory": replace_by_directory("policy"),
    "directory removed": shutil.rmtree,
}


#: What lowers the count that the program's own processes go by. Only the watcher can tell, and closes the share.
NOTICED_BY_THE_WATCHER = {"ledger zeroed"}


def ask_if_alive(program, *command: object) -> object:
    """Ask; None where the program's own processes did not survive what it did to itself."""
    try:
        return program.ask(*command)
    except (BrokenPipeError, json.JSONDecodeError):
        return None


#: Prints what a newcomer of the container is given of twice its share; its driver may refuse it a context altogether.
NEWCOMER = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
p = ctypes.c_uint64()
context = ctypes.c_void_p()
cuda.cuInit(0)
if cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0:
    cuda.cuCtxSetCurrent(context)
given = 0
while given < 128 and cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(64 << 20)) == 0:
    given += 1
print(given)
"""


def newcomer(environment: dict[str, str]) -> int:
    """64 MiB blocks that a process started in this environment gets; it must end by itself, silently."""
    command = [sys.executable, "-c", NEWCOMER]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stderr) in ((0, ""), (-signal.SIGBUS, "")), done
    return int(done.stdout or 0)


def held(machine) -> int:
    """Bytes that living processes hold of the simulated card, as `partage top` shows them beside whatever is broken."""
    result = machine.partage("top", "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)["devices"][0]["used"]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_to_ones_own_share_gives_nothing_and_hurts_nobody_else(machine, damage):
    victim, neighbour = machine.start("--memory", "4Gi", narrated=True), machine.start("--memory", "8Gi")
    environment = victim.environment()
    share = Path(environment["PARTAGE_DIR"])
    assert victim.ask("alloc", 2 * GIB) == 0
    assert neighbour.ask("alloc", 4 * GIB) == 0
    DAMAGE[damage](share)
    if damage in NOTICED_BY_THE_WATCHER:
        victim.until(lambda: not read_policy(share / "policy").is_open)

    for size in (4 * GIB, 3 * GIB, 2 * GIB + 4096):
        assert ask_if_alive(victim, "alloc", size) != 0, "the program was given more than its share"
    given = newcomer(environment)
    assert given <= (4 * GIB) // (64 << 20), f"a newcomer was given {given} blocks"
    assert held(machine) <= 4 * GIB + 4 * GIB

    assert neighbour.ask("alloc", 4 * GIB) == 0, "the neighbour lost some of its share"
    assert neighbour.ask("alloc", 2 << 20) == OUT_OF_MEMORY
    assert neighbour.ask("info") == [0, 8 * GIB]
    victim.finish()
    assert neighbour.ask("free") == 0
    assert neighbour.finish() == (0, "")


#: Variables by which a tenant may try to get more, or out.
ENVIRONMENTS = {
    "limits unset": {"CUDA_DEVICE_MEMORY_LIMIT": None, "CUDA_DEVICE_MEMORY_LIMIT_0": None},
    "limits raised": {
        "CUDA_DEVICE_MEMORY_LIMIT": "80g",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "80g",
        "MAX_GPU_MEM_MB": "81920",
    },
    "limits taken off": {"CUDA_DEVICE_MEMORY_LIMIT": "0", "CUDA_DEVICE_MEMORY_LIMIT_0": "0m"},
    "another ledger": {"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/tmp/partage-test-own.cache"},
    "opt-out": {"CUDA_DISABLE_CONTROL": "true", "CUDA_OVERSUBSCRIBE": "true", "GPU_CORE_UTILIZATION_POLICY": "disable"},
    "other devices": {"CUDA_VISIBLE_DEVICES": "0", "NVIDIA_VISIBLE_DEVICES": "all"},
    "no runtime directory": {"XDG_RUNTIME_DIR": None, "HOME": None, "TMPDIR": "/nonexistent"},
}


@pytest.mark.parametrize("changes", ENVIRONMENTS)
def test_the_environment_never_raises_a_share(machine, changes):
    program = machine.start("--memory", "4Gi")
    environment = program.environment()
    for name, value in ENVIRONMENTS[changes].items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    assert program.ask("alloc", GIB) == 0
    assert newcomer(environment) == (3 * GIB) // (64 << 20)
    assert not Path("/tmp/partage-test-own.cache").exists()


def test_a_policy_that_grants_a_device_which_does_not_exist_gives_nothing(machine):
    program = machine.start("--memory", "4Gi")
    environment = program.environment()
    other = Path(environment["PARTAGE_DIR"]).parent / "nowhere"
    shutil.copytree(environment["PARTAGE_DIR"], other)
    (other / "policy").unlink()
    (other / "ledger").write_bytes(b"")
    device = PolicyDevice(uuid="GPU-00000000-0000-4000-8000-000000000000", memory=GIB, physical=80 * GIB)
    PolicyFile.create(other / "policy", Policy(devices=(device,))).close()
    assert newcomer(environment | {"PARTAGE_DIR": str(other)}) == 0
    assert newcomer(environment) == (4 * GIB) // (64 << 20)


def test_a_program_that_is_killed_in_a_damaged_share_gives_its_memory_back_to_the_card(machine):
    victim = machine.start("--memory", "4Gi")
    share = Path(victim.environment()["PARTAGE_DIR"])
    assert victim.ask("alloc", 4 * GIB) == 0
    (share / "ledger").unlink()
    os.kill(victim.pid, signal.SIGKILL)
    assert victim.process.wait(WAIT_S) == 137
    heir = machine.start("--memory", "70Gi", program=(sys.executable, str(HOLDER)))
    assert heir.ask("alloc", 70 * GIB) == 0
