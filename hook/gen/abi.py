"""Write the C source of `partage._abi`: the shared structures as Python sees them, from the headers that C uses.

Called by CMake (and by hand):

    python3 hook/gen/abi.py --out build/generated/abi.c [--cc gcc]

The headers (`hook/include/partage/{policy,ledger,turns}.h`, `hook/sim/machine.h`, `hook/arbiter/host.h`) are
preprocessed by the C compiler itself; structures and integer constants become cffi's declarations,
hook/gen/abi_support.h is inlined for what needs atomics, futexes and the SIGBUS guard. Python's idea of each field's
offset and size is written back into the source as a static assertion, so a compiler that lays a structure out otherwise
stops the build instead of misreading memory.

What can go wrong: no C compiler, or a header with something that cffi cannot parse. Both end with the tool's message.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import cffi

ROOT = Path(__file__).resolve().parents[2]
HEADERS = ("partage/policy.h", "partage/ledger.h", "partage/turns.h", "machine.h", "host.h")
INCLUDES = ("hook/include", "hook/sim", "hook/arbiter")
SUPPORT = Path(__file__).with_name("abi_support.h")
CONSTANT = re.compile(r"^#define ((?:PTG|SIM)_[A-Z0-9_]+) (.+)$", re.MULTILINE)

# The functions of abi_support.h that Python calls.
FUNCTIONS = """
static inline uint32_t ptg_crc32c(const void *data, size_t n);
static inline uint32_t ptg_policy_crc(const struct ptg_policy *policy);
static int ptg_policy_publish(struct ptg_policy *shared, const struct ptg_policy *image);
static int ptg_policy_gated(const struct ptg_policy *shared);
static int ptg_guard_install(void);
static int ptg_slot_reclaim(int fd, void *map, uint32_t index, int dead);
static int ptg_slot_set_host_pid(void *map, uint32_t index, int32_t pid);
static int ptg_futex_wait(void *p, uint32_t expected, int64_t timeout_ns);
static int ptg_futex_wake(void *p);
static int ptg_doorbell_ring(void *map);
static int ptg_turn_bell_ring(int fd);
"""


def preprocess(compiler: list[str], *options: str) -> str:
    """Run the C preprocessor over all headers, with empty system headers: cffi knows the fixed-width types itself."""
    with tempfile.TemporaryDirectory() as stubs:
        for name in ("stdint.h", "stddef.h"):
            Path(stubs, name).write_text("")
        includes = [f"-I{directory}" for directory in (stubs, *(ROOT / name for name in INCLUDES))]
        text = "".join(f'#include "{header}"\n' for header in HEADERS)
        command = [*compiler, "-E", "-P", "-nostdinc", *options, *includes, "-x", "c", "-"]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def declarations(compiler: list[str]) -> tuple[str, str]:
    """Return the structures and the constants as cffi declarations; the compiler fills in the constants' values."""
    structures = preprocess(compiler)
    names = [match[1] for match in CONSTANT.finditer(preprocess(compiler, "-dM"))]
    return structures, "".join(f"#define {name} ...\n" for name in sorted(names))


def layout_assertions(structures: str) -> str:
    """Return static assertions of the layout that Python computes for each structure."""
    ffi = cffi.FFI()
    ffi.cdef(structures)
    lines = []
    for name in re.findall(r"^struct (\w+) \{", structures, re.MULTILINE):
        kind = ffi.typeof(f"struct {name}")
        lines.append(f'_Static_assert(sizeof(struct {name}) == {ffi.sizeof(kind)}, "size of {name}");')
        for field, description in kind.fields:
            check = f"offsetof(struct {name}, {field}) == {description.offset}"
            size = f"sizeof(((struct {name} *)0)->{field}) == {ffi.sizeof(description.type)}"
            lines.append(f'_Static_assert({check} && {size}, "{name}.{field}");')
    return "\n".join(lines) + "\n"


def source(structures: str) -> str:
    """Return the C prologue of the module: headers, support code, proof of the layout."""
    includes = "".join(f'#include "{header}"\n' for header in HEADERS)
    features = "#ifndef _GNU_SOURCE\n#define _GNU_SOURCE\n#endif\n"
    return features + includes + SUPPORT.read_text() + layout_assertions(structures)


def main() -> int:
    """Write the source; exit code 1 with the compiler's words where the headers do not preprocess."""
    parser = argparse.ArgumentParser(description="write the C source of partage._abi")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"), help="C compiler that preprocesses the headers")
    arguments = parser.parse_args()
    try:
        structures, constants = declarations(shlex.split(arguments.cc))
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or str(error)
        print(f"abi.py: {arguments.cc} cannot preprocess the headers; set CC: {reason}", file=sys.stderr)
        return 1
    builder = cffi.FFI()
    builder.cdef(structures + constants + FUNCTIONS)
    builder.set_source("partage._abi", source(structures))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    builder.emit_c_code(str(arguments.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
