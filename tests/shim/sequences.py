"""Plays random sequences of driver calls, right and wrong ones, and prints what each gave: one JSON list per call.

Started by test_k06_same_answers.py twice, with libvgpu.so and without, with the same functions and seeds; the two must
print the same. Each sequence runs in a child of its own, so that one that faults ends only itself (its last line then
names the call, in both runs). What is printed of a call: its code, and of each output that it was given whether bytes
were written, for handles and addresses whether there is one, for numbers the number.

    python3 sequences.py FUNCTIONS.json FIRST_SEED LAST_SEED CALLS
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import resource
import signal
import sys
from pathlib import Path

MIB = 1 << 20
PTX = b""".version 7.0
.target sm_50
.address_size 64
.visible .global .align 4 .b8 numbers[4096];
.visible .entry kernel(.param .u64 p) { ret; }
\0"""
SIZES = (0, 1, 3, 4, 8, 16, 100, 256, 4096, 65536, MIB, 2 * MIB, 3 * MIB + 1, 32 * MIB, 64 * MIB, 1 << 30, 1 << 38)
NUMBERS = (0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 3, 4, 7, 8, 16, 32, 255, 4096, 2**31, 2**32 - 1)
#: By type; `count` is how many things an array has, a function is never there.
VALUES = {
    **dict.fromkeys(("size_t", "unsigned long long", "cuuint64_t"), SIZES),
    "CUdevice": (0, 0, 0, 0, 1, 99, 2**32 - 1),
    "count": (0, 1, 1, 1, 2, 3),
    "function": (0,),
}
STRINGS = (b"kernel", b"numbers", b"cuMemAlloc", b"cuStreamSynchronize", b"cuNoSuchThing", b"", b"GPU-nobody")
FILL = 0xA5  # what outputs hold before a call
ROOM = 4096  # bytes of each output
#: Not the same in two runs without the library either: times, and whether work has ended yet.
UNCERTAIN = {"cuEventQuery", "cuStreamQuery", "cuEventQuery_ptsz", "cuStreamQuery_ptsz"}
NOT_READY = 600
#: Their first number: managed memory counts in full from its allocation on, whether or not it is on the card yet.
FREE_MEMORY = {"cuMemGetInfo", "cuMemGetInfo_v2"}
WATCHDOG_S = 20


class Player:
    """One sequence: what it has been given so far, by type, and how arguments are made of it."""

    def __init__(self, library: ctypes.CDLL, functions: dict[str, list[str]], seed: int) -> None:
        self.library = library
        self.functions = functions
        self.choice = random.Random(seed)
        self.given: dict[str, list[int]] = {}
        self.kept: list[ctypes.Array[ctypes.c_char]] = []
        self.host = ctypes.create_string_buffer(bytes(range(256)) * 256)
        self.text = ctypes.create_string_buffer(PTX)

    def buffer(self, content: bytes) -> int:
        """Memory of this process with this content; lives as long as the sequence."""
        made = ctypes.create_string_buffer(content, max(len(content), ROOM))
        self.kept.append(made)
        return ctypes.addressof(made)

    def handle(self, kind: str) -> int:
        """One that was given out (and may have been destroyed since), none, or one of another kind."""
        known = self.given.get(kind, [])
        dice = self.choice.random()
        if known and dice < 0.8:
            return self.choice.choice(known[-6:])
        others = [handle for handles in self.given.values() for handle in handles]
        return self.choice.choice(others) if others and dice > 0.95 else 0

    def address(self) -> int:
        """A device address: a block's begin, its inside, or nonsense."""
        begin = self.handle("CUdeviceptr")
        return begin + self.choice.choice((0, 0, 0, 0, 256, 4096, 65537))

    def structure(self) -> bytes:
        """Zeros and a few small numbers: many structures make sense that way, and what is a pointer is NULL."""
        words = [0] * 64
        for _ in range(self.choice.choice((0, 0, 1, 2, 3, 4))):
            words[2 * self.choice.randrange(8)] = self.choice.choice((1, 1, 2, 4, 64))
        words[0] = self.choice.choice((0, 1, 1, 2))
        return b"".join(word.to_bytes(4, "little") for word in words)

    def pointer(self, kind: str) -> tuple[int, int | None]:
        """An argument that points somewhere, and where its output lies (None: it is no output)."""
        target = kind[:-1].strip()
        if self.choice.random() < 0.08:
            return 0, None
        if target in ("void", "const void"):
            return ctypes.addressof(self.host if target == "void" else self.choice.choice((self.host, self.text))), None
        if target == "const char":
            return self.buffer(self.choice.choice(STRINGS) + b"\0"), None
        if target.startswith("const ") or target.endswith(("_PARAMS", "Prop", "Params", "_DESCRIPTOR", "_st", "_DESC")):
            return self.buffer(self.structure()), None
        made = self.buffer(bytes([FILL]) * ROOM)
        return made, made

    def argument(self, kind: str) -> tuple[int, int | None]:
        """A value for a parameter of this type."""
        if kind.endswith("*"):
            return self.pointer(kind)
        if kind == "CUdeviceptr":
            return self.address(), None
        if kind.startswith("handle "):
            return self.handle(kind.removeprefix("handle ")), None
        return self.choice.choice(VALUES.get(kind, NUMBERS)), None

    def call(self, name: str) -> list[object]:
        """Call it with drawn arguments; what came of it."""
        kinds = self.functions[name]
        drawn = [self.argument(kind) for kind in kinds]
        code = getattr(self.library, name)(*(ctypes.c_uint64(value) for value, _ in drawn))
        if name in UNCERTAIN and code == NOT_READY:
            code = 0
        outputs = [self.output(kind, place, code) for kind, (_, place) in zip(kinds, drawn, strict=True) if place]
        if name in FREE_MEMORY and code == 0:
            outputs = outputs[1:]
        return [name, [self.shown(kind, value) for kind, (value, _) in zip(kinds, drawn, strict=True)], code, outputs]

    def shown(self, kind: str, value: int) -> object:
        """An argument as it can be compared: addresses and handles differ from run to run."""
        if kind.endswith("*") or kind.startswith("handle ") or kind == "CUdeviceptr":
            return bool(value)
        return value

    def output(self, kind: str, place: int, code: int) -> object:
        """What an output holds after the call."""
        raw = ctypes.string_at(place, ROOM)
        written = raw != bytes([FILL]) * ROOM
        if code or not written:
            return "written" if written else ""
        target = kind[:-1].strip()
        value = int.from_bytes(raw[:8], "little")
        if target in HANDLES or target == "CUdeviceptr":
            self.given.setdefault(target, []).append(value)
            return "something" if value else "nothing"
        if target in ("int", "unsigned int"):
            return int.from_bytes(raw[:4], "little")
        return value if target in ("size_t", "unsigned long long", "cuuint64_t") else "written"

    def prelude(self) -> list[str]:
        """Calls that most programs begin with; some sequences begin before them."""
        dice = self.choice.random()
        if dice < 0.1:
            return []
        if dice < 0.2:
            return ["cuInit"]
        return ["cuInit", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"]

    def begin(self) -> None:
        """Play the prelude with right arguments."""
        out = ctypes.c_uint64()
        for name in self.prelude():
            if name == "cuInit":
                self.library.cuInit(0)
            elif name == "cuDevicePrimaryCtxRetain":
                self.library.cuDevicePrimaryCtxRetain(ctypes.byref(out), 0)
                self.given["CUcontext"] = [out.value]
            else:
                self.library.cuCtxSetCurrent(ctypes.c_uint64(out.value))
                self.something_of_each()

    def something_of_each(self) -> None:
        """A block, a stream, an event, a module, a graph, a pool: so that later calls find some."""
        out = ctypes.c_uint64()
        ref = ctypes.byref(out)
        for kind, made in (
            ("CUdeviceptr", lambda: self.library.cuMemAlloc_v2(ref, ctypes.c_uint64(3 * MIB))),
            ("CUdeviceptr", lambda: self.library.cuMemAllocManaged(ref, ctypes.c_uint64(MIB), 1)),
            ("CUstream", lambda: self.library.cuStreamCreate(ref, 0)),
            ("CUevent", lambda: self.library.cuEventCreate(ref, 0)),
            ("CUmodule", lambda: self.library.cuModuleLoadData(ref, self.text)),
            ("CUgraph", lambda: self.library.cuGraphCreate(ref, 0)),
            ("CUmemoryPool", lambda: self.library.cuDeviceGetDefaultMemPool(ref, 0)),
        ):
            if made() == 0:
                self.given.setdefault(kind, []).append(out.value)
        if self.choice.random() < 0.2:
            self.library.cuStreamBeginCapture_v2(
                ctypes.c_uint64(self.given["CUstream"][0]), self.choice.choice((0, 1, 2))
            )


def play(player: Player, calls: int) -> None:
    """A whole sequence, a line before each call and one after it: the last one names whoever faults."""
    names, hooked = sorted(player.functions), HOOKED
    player.begin()
    for _ in range(calls):
        name = player.choice.choice(hooked if player.choice.random() < 0.4 else names)
        os.write(1, json.dumps([name]).encode() + b"\n")
        os.write(1, json.dumps(player.call(name)).encode() + b"\n")


HANDLES: set[str] = set()
HOOKED: list[str] = []


def main() -> None:
    """All sequences, one child each."""
    asked = json.loads(Path(sys.argv[1]).read_text())
    HANDLES.update(asked["handles"])
    HOOKED.extend(asked["hooked"])
    first, last, calls = (int(word) for word in sys.argv[2:5])
    library = ctypes.CDLL("libcuda.so.1")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for seed in range(first, last):
        os.write(1, json.dumps(["seed", seed]).encode() + b"\n")
        pid = os.fork()
        if pid == 0:
            signal.alarm(WATCHDOG_S)
            play(Player(library, asked["functions"], seed), calls)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        os.write(1, json.dumps(["ended", status]).encode() + b"\n")


if __name__ == "__main__":
    main()
