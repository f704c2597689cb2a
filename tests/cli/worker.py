"""A program that keeps devices busy by one door of the driver: worker.py DOOR KERNEL_NS DEVICE... GRID.

Says its pid as JSON, then obeys a line each: `go` launches without a pause on every device it was given, `pause` waits
until all is done and answers `[]`, `launch COUNT` launches so often on every device and waits until all is done, `one
NS` launches a single kernel with the largest grid and waits for it, `threads`
answers with the names of its threads, `lie` makes the library believe that it takes no turns. Doors: plain, ex,
cooperative, graph (of ten kernels), sync (each is waited for).
"""

import ctypes
import json
import mmap
import os
import select
import sys
from pathlib import Path

PTX = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry spin_ns(.param .u64 ns)\n{\n\tret;\n}\n"
LARGEST = (2**31 - 1, 65535, 65535)
NODES = 10
GATED = 56  # offset of ptg_policy.gated
MAP_FIXED = 0x10

cuda = ctypes.CDLL("libcuda.so.1")


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


class Node(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


def check(error: int) -> None:
    assert error == 0, error


class Device:
    """One device's context and kernel, and the door by which it is launched."""

    def __init__(self, ordinal: int, door: str, kernel_ns: int) -> None:
        self.context, module, device = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
        self.function, self.ns = ctypes.c_void_p(), ctypes.c_uint64(kernel_ns)
        self.parameters = (ctypes.c_void_p * 1)(ctypes.addressof(self.ns))
        check(cuda.cuDeviceGet(ctypes.byref(device), ordinal))
        check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), device))
        self.enter()
        check(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
        check(cuda.cuModuleGetFunction(ctypes.byref(self.function), module, b"spin_ns"))
        self.launch = getattr(self, door)
        self.graph_exec = self.make_graph() if door == "graph" else None

    def enter(self) -> None:
        check(cuda.cuCtxSetCurrent(self.context))

    def finish(self) -> None:
        self.enter()
        check(cuda.cuCtxSynchronize())

    def plain(self, grid: tuple[int, int, int] = (1, 1, 1)) -> None:
        check(cuda.cuLaunchKernel(self.function, *grid, 1, 1, 1, 0, None, self.parameters, None))

    def cooperative(self) -> None:
        check(cuda.cuLaunchCooperativeKernel(self.function, 1, 1, 1, 1, 1, 1, 0, None, self.parameters))

    def ex(self) -> None:
        config = Config(gx=1, gy=1, gz=1, bx=1, by=1, bz=1)
        check(cuda.cuLaunchKernelEx(ctypes.byref(config), self.function, self.parameters, None))

    def sync(self) -> None:
        self.plain()
        check(cuda.cuCtxSynchronize())

    def graph(self) -> None:
        check(cuda.cuGraphLaunch(self.graph_exec, None))

    def make_graph(self) -> ctypes.c_void_p:
        graph, made, node = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        check(cuda.cuGraphCreate(ctypes.byref(graph), 0))
        for _ in range(NODES):
            what = Node(function=self.function, gx=1, gy=1, gz=1, bx=1, by=1, bz=1)
            what.parameters = ctypes.cast(self.parameters, ctypes.c_void_p)
            check(cuda.cuGraphAddKernelNode_v2(ctypes.byref(node), graph, None, 0, ctypes.byref(what)))
        check(cuda.cuGraphInstantiateWithFlags(ctypes.byref(made), graph, ctypes.c_ulonglong(0)))
        return made


def go(devices: list[Device]) -> None:
    while not select.select([sys.stdin], [], [], 0)[0]:
        for device in devices:
            device.enter()
            device.launch()


def launch(devices: list[Device], count: int) -> None:
    for _ in range(count):
        for device in devices:
            device.enter()
            device.launch()
    for device in devices:
        device.finish()


def one(device: Device, ns: int) -> None:
    device.enter()
    kept, device.ns.value = device.ns.value, ns
    device.plain(LARGEST)
    device.ns.value = kept
    device.finish()


def lie() -> None:
    """Lay a policy of our own over the library's mapping, by which nobody here takes turns."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, page = ctypes.c_void_p, mmap.PAGESIZE
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    maps = Path("/proc/self/maps").read_text().splitlines()
    found = [int(line.partition("-")[0], 16) for line in maps if line.endswith("/policy")]
    assert found, "the library maps no policy"
    for address in found:
        content = bytearray(ctypes.string_at(address, page))
        content[GATED : GATED + 4] = bytes(4)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED
        assert libc.mmap(address, page, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) == address
        ctypes.memmove(address, bytes(content), page)


def main() -> None:
    door, kernel_ns, *ordinals = sys.argv[1:]
    check(cuda.cuInit(0))
    devices = [Device(int(ordinal), door, int(kernel_ns)) for ordinal in ordinals]
    print(json.dumps({"pid": os.getpid()}), flush=True)
    while line := sys.stdin.readline():
        answer: object = []
        match json.loads(line or "[]"):
            case ["go"]:
                go(devices)
                continue
            case ["pause"]:
                for device in devices:
                    device.finish()
            case ["launch", count]:
                launch(devices, count)
            case ["one", ns]:
                one(devices[0], ns)
            case ["lie"]:
                lie()
            case ["threads"]:
                tasks = Path("/proc/self/task").iterdir()
                answer = sorted((task / "comm").read_text().strip() for task in tasks)
        print(json.dumps(answer), flush=True)


main()
