"""Assembler entries of the launch calls: load the gate word, test, jump on; and the C functions behind a closed gate.

A launch has up to eleven arguments, and a compiler that wraps such a call loads and stores every one that lies on the
stack. A stub touches none: it uses only registers that the ABI lends to such code (r11, r10, rax; x16, x17, x9, x10),
leaves the stack and every argument where they are, and jumps, so that the driver returns to the caller itself. What a
stub promises: all argument registers, callee-saved registers and the stack as the caller left them, hence the caller's
alignment; unwind tables that are right at each instruction (the frame never changes); a landing pad for indirect
branches (endbr64; bti c). One address per name: what is exported, what dlsym and cuGetProcAddress give, are the same.

While the gate word is 0 a stub goes on to the driver's function, or to the hook of a name that hook/shim defines. Where
it is not, and the thread has been given launches on this stream that still hold (struct vgpu_gate_thread in
hook/shim/gate.h, which says what is compared and why), it counts one down and goes on to `quick_NAME`, C that calls
the driver and takes the thread's flag back. Else, and where the driver's function is not looked up yet, it goes on to
`slow_NAME`, the slow way.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from classes import GATED
from emit import BANNER

if TYPE_CHECKING:
    from api import Function
    from emit_shim import Hooks

#: Of the gated names those that are called often and for less than their work takes: launches.
_LAUNCH = re.compile(r"cuLaunch|cuGraphLaunch")


def is_stub(name: str, classes: dict[str, str]) -> bool:
    """Whether the entry of a name is a generated stub."""
    return classes[name] == GATED and _LAUNCH.match(name) is not None


def is_many(function: Function) -> bool:
    """Whether a call launches on several devices at once."""
    return "CUDA_LAUNCH_PARAMS" in function.parameters[0].type


#: Offsets in struct vgpu_gate_thread, and of the stream in CUlaunchConfig; hooks_stubs.c asserts them.
_ENTERED, _LEFT, _STREAM, _WORD, _SEEN, _EPOCH, _OWN = 0, 4, 8, 16, 24, 28, 32
_CONFIG_STREAM = 32


def _place_of_stream(function: Function) -> tuple[str, int]:
    """Where a launch names its stream: ("argument" or "config", its index), or ("none", 0)."""
    for index, parameter in enumerate(function.parameters):
        if parameter.type == "CUstream":
            return "argument", index
        if "CUlaunchConfig" in parameter.type:
            return "config", index
    return "none", 0


def _offset_of_stream(function: Function) -> int:
    """Return the offset of what the stream is compared with: calls for per-thread streams mean another one by NULL."""
    return _OWN if function.name.endswith("_ptsz") else _STREAM


_X86_64_ON = {
    True: "\t.hidden\thook_{name}\n\tjmp\thook_{name}\n1:\tjmp\tslow_{name}\n",
    False: (
        "\tmovq\tvgpu_real+{offset}(%rip), %r11\n"
        "\ttestq\t%r11, %r11\n"
        "\tje\tslow_{name}\n"
        "\tjmp\t*%r11\n"
        "1:\n{quick}"
        "\tjmp\t{last}_{name}\n"
    ),
}  # fmt: skip

_X86_64 = """\
	.globl	{name}, stub_{name}
	.hidden	stub_{name}, slow_{name}
	.type	{name}, @function
	.type	stub_{name}, @function
	.p2align 5
{name}:
stub_{name}:
	.cfi_startproc
	endbr64
	movq	vgpu_gate_at(%rip), %r11
	cmpl	$0, (%r11)
	jne	1f
{on}	.cfi_endproc
	.size	{name}, . - {name}
	.size	stub_{name}, . - stub_{name}
"""

_X86_64_REGISTERS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")


def _x86_64_quick(function: Function, offset: int) -> str:
    kind, index = _place_of_stream(function)
    place = f"%{_X86_64_REGISTERS[index]}" if index < 6 else f"{8 * (index - 6) + 8}(%rsp)"
    slow = f"slow_{function.name}"
    stream = {
        "none": ["xorl\t%r10d, %r10d"],
        "argument": [f"movq\t{place}, %r10"],
        "config": [f"testq\t{place}, {place}", f"je\t{slow}", f"movq\t{_CONFIG_STREAM}({place}), %r10"],
    }[kind]
    lines = [
        f".hidden\tquick_{function.name}",
        "movq\tvgpu_gate_self@gottpoff(%rip), %r11",
        "movq\t%fs:(%r11), %r11",
        f"movl\t$1, {_ENTERED}(%r11)",
        f"movl\t{_LEFT}(%r11), %eax",
        "subl\t$1, %eax",
        f"jb\t{slow}",
        *stream,
        f"cmpq\t{_offset_of_stream(function)}(%r11), %r10",
        f"jne\t{slow}",
        "movl\tvgpu_gate_epoch(%rip), %r10d",
        f"cmpl\t{_EPOCH}(%r11), %r10d",
        f"jne\t{slow}",
        f"movq\t{_WORD}(%r11), %r10",
        "movl\t(%r10), %r10d",
        f"cmpl\t{_SEEN}(%r11), %r10d",
        f"jne\t{slow}",
        f"cmpq\t$0, vgpu_real+{offset}(%rip)",
        f"je\t{slow}",
        f"movl\t%eax, {_LEFT}(%r11)",
    ]
    return "".join(f"\t{line}\n" for line in lines)


_AARCH64_ON = {
    True: "\t.hidden\thook_{name}\n\tb\thook_{name}\n1:\tb\tslow_{name}\n",
    False: (
        "\tadrp\tx16, vgpu_real+{offset}\n"
        "\tldr\tx16, [x16, #:lo12:vgpu_real+{offset}]\n"
        "\tcbz\tx16, 2f\n"
        "\tbr\tx16\n"
        "1:\n{quick}"
        "\tb\t{last}_{name}\n"
        "2:\tb\tslow_{name}\n"
    ),
}  # fmt: skip

_AARCH64 = """\
	.globl	{name}, stub_{name}
	.hidden	stub_{name}, slow_{name}
	.type	{name}, %function
	.type	stub_{name}, %function
	.p2align 5
{name}:
stub_{name}:
	.cfi_startproc
	hint	#34	/* bti c */
	adrp	x16, vgpu_gate_at
	ldr	x16, [x16, #:lo12:vgpu_gate_at]
	ldr	w16, [x16]
	cbnz	w16, 1f
{on}	.cfi_endproc
	.size	{name}, . - {name}
	.size	stub_{name}, . - stub_{name}
"""


def _aarch64_quick(function: Function, offset: int) -> str:
    kind, index = _place_of_stream(function)
    stream = {
        "none": ["mov\tx17, xzr"],
        "argument": [f"mov\tx17, x{index}" if index < 8 else f"ldr\tx17, [sp, #{8 * (index - 8)}]"],
        "config": [f"cbz\tx{index}, 2f", f"ldr\tx17, [x{index}, #{_CONFIG_STREAM}]"],
    }[kind]
    lines = [
        f".hidden\tquick_{function.name}",
        "adrp\tx16, :gottprel:vgpu_gate_self",
        "ldr\tx16, [x16, #:gottprel_lo12:vgpu_gate_self]",
        "mrs\tx17, tpidr_el0",
        "ldr\tx16, [x17, x16]",
        "mov\tw17, #1",
        f"str\tw17, [x16, #{_ENTERED}]",
        f"ldr\tw9, [x16, #{_LEFT}]",
        "cbz\tw9, 2f",
        *stream,
        f"ldr\tx10, [x16, #{_offset_of_stream(function)}]",
        "cmp\tx10, x17",
        "b.ne\t2f",
        "adrp\tx17, vgpu_gate_epoch",
        "ldr\tw17, [x17, #:lo12:vgpu_gate_epoch]",
        f"ldr\tw10, [x16, #{_EPOCH}]",
        "cmp\tw10, w17",
        "b.ne\t2f",
        f"ldr\tx17, [x16, #{_WORD}]",
        "ldr\tw17, [x17]",
        f"ldr\tw10, [x16, #{_SEEN}]",
        "cmp\tw10, w17",
        "b.ne\t2f",
        f"adrp\tx17, vgpu_real+{offset}",
        f"ldr\tx17, [x17, #:lo12:vgpu_real+{offset}]",
        "cbz\tx17, 2f",
        "sub\tw9, w9, #1",
        f"str\tw9, [x16, #{_LEFT}]",
    ]
    return "".join(f"\t{line}\n" for line in lines)


#: Machines that there are stubs for.
MACHINES = ("x86_64", "aarch64")
_SECTION_MARK = {"x86_64": "@progbits", "aarch64": "%progbits"}


def stubs_s(hooks: Hooks, machine: str) -> str:
    """Write the stubs of one machine, `x86_64` or `aarch64`."""
    stub, ways, quick = {
        "x86_64": (_X86_64, _X86_64_ON, _x86_64_quick),
        "aarch64": (_AARCH64, _AARCH64_ON, _aarch64_quick),
    }[machine]
    parts = [BANNER.format(what="Entries of the launch calls; see hook/gen/emit_stubs.py for what they promise.")]
    parts.append("\t.text\n\t.hidden\tvgpu_gate_at, vgpu_gate_self, vgpu_gate_epoch, vgpu_real\n")
    for name in hooks.stubs():
        function, offset = hooks.functions[name], 8 * hooks.order.index(name)
        many = is_many(function)
        on = ways[name in hooks.written].format(
            name=name,
            offset=offset,
            quick="" if many else quick(function, offset),
            last="slow" if many else "quick",
        )
        parts.append(stub.format(name=name, on=on))
    parts.append(f'\t.section .note.GNU-stack, "", {_SECTION_MARK[machine]}\n')
    return "\n".join(parts)


def stream_of(function: Function) -> str:
    """C expression of the stream that a call goes to, the thread's own where the call is for per-thread streams."""
    found = "NULL"
    for parameter in function.parameters:
        if parameter.type == "CUstream":
            found = parameter.name
        elif "CUlaunchConfig" in parameter.type:
            found = f"({parameter.name} ? {parameter.name}->hStream : NULL)"
    if function.name.endswith(("_ptsz", "_ptds")):
        return "CU_STREAM_PER_THREAD" if found == "NULL" else f"({found} ? {found} : CU_STREAM_PER_THREAD)"
    return found


_LAYOUT = f"""\
_Static_assert(offsetof(struct vgpu_gate_thread, entered) == {_ENTERED} &&
                       offsetof(struct vgpu_gate_thread, left) == {_LEFT} &&
                       offsetof(struct vgpu_gate_thread, stream) == {_STREAM} &&
                       offsetof(struct vgpu_gate_thread, word) == {_WORD} &&
                       offsetof(struct vgpu_gate_thread, seen) == {_SEEN} &&
                       offsetof(struct vgpu_gate_thread, epoch) == {_EPOCH} &&
                       offsetof(struct vgpu_gate_thread, own) == {_OWN} &&
                       offsetof(CUlaunchConfig, hStream) == {_CONFIG_STREAM},
               "the stubs know these places");
"""

_SLOW = """\
{slow};
{slow}
{{
	struct vgpu_launch launch = {{.stream = {stream}, .work = {work}}};

	vgpu_gate_enter(&launch);
	CUresult result = {way}_{name}({arguments});
	vgpu_gate_leave(&launch, result);
	return result;
}}
"""

_SLOW_MANY = """\
{slow};
{slow}
{{
	struct vgpu_launch launch[VGPU_LAUNCH_DEVICES];

	vgpu_gate_enter_list(launch, {list}, {count});
	CUresult result = {way}_{name}({arguments});
	vgpu_gate_leave_list(launch, {count}, result);
	return result;
}}
"""

#: Whatever an argument is, it lies in a whole register or eight bytes of stack, and is passed on as that.
_QUICK = """\
CUresult quick_{name}({words});
CUresult quick_{name}({words})
{{
	CUresult (*driver)({types}) = (CUresult(*)({types}))vgpu_real[VGPU_INDEX_{name}];
	CUresult result = driver({given});

	vgpu_gate_passed();
	return result;
}}
"""


def stubs_c(hooks: Hooks) -> str:
    """Write what the stubs go on to: the slow way, and the call of a thread that has been given launches."""
    lines = [BANNER.format(what="Launches behind a gate that is not open.")]
    lines += ['#include "gate.h"', '#include "hooks.h"', "", _LAYOUT]
    for name in hooks.stubs():
        function = hooks.functions[name]
        many = is_many(function)
        slow = _SLOW_MANY if many else _SLOW
        lines.append(
            (slow if many or name in hooks.written else slow + _QUICK).format(
                name=name,
                slow=function.prototype("slow_"),
                words=", ".join(f"uintptr_t a{i}" for i in range(len(function.parameters))),
                types=", ".join("uintptr_t" for _ in function.parameters),
                given=", ".join(f"a{i}" for i in range(len(function.parameters))),
                way="hook" if name in hooks.written else "real",
                arguments=function.argument_list(),
                stream=stream_of(function),
                work="VGPU_WORK_GRAPH" if "Graph" in name else "VGPU_WORK_KERNEL",
                list=function.parameters[0].name,
                count=function.parameters[1].name if many else "",
            )
        )
    return "\n".join(lines)
