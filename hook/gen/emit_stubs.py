"""Assembler entries of the launch calls: load the gate word, test, jump on; and the C functions behind a closed gate.

A launch has up to eleven arguments, and a compiler that wraps such a call loads and stores every one that lies on the
stack. A stub touches none: it uses only the register that the ABI lends to such code (r11; x16), leaves the stack and
every argument where they are, and jumps, so that the driver returns to the caller itself. What a stub promises:
all argument registers, callee-saved registers and the stack as the caller left them, hence the caller's alignment;
unwind tables that are right at each instruction (the frame never changes); a landing pad for indirect branches
(endbr64; bti c). One address per name: what is exported, what dlsym and cuGetProcAddress give, are the same.

While the gate word is 0 a stub goes on to the driver's function, or to the hook of a name that hook/shim defines.
Where the word is not 0, or the driver's function is not looked up yet, it goes on to `slow_NAME`, which is C.
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


_X86_64_ON = {
    True: "\t.hidden\thook_{name}\n\tjmp\thook_{name}\n",
    False: (
        "\tmovq\tvgpu_real+{offset}(%rip), %r11\n"
        "\ttestq\t%r11, %r11\n"
        "\tje\tslow_{name}\n"
        "\tjmp\t*%r11\n"
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
	jne	slow_{name}
{on}	.cfi_endproc
	.size	{name}, . - {name}
	.size	stub_{name}, . - stub_{name}
"""

_AARCH64_ON = {
    True: "\t.hidden\thook_{name}\n\tb\thook_{name}\n1:\tb\tslow_{name}\n",
    False: (
        "\tadrp\tx16, vgpu_real+{offset}\n"
        "\tldr\tx16, [x16, #:lo12:vgpu_real+{offset}]\n"
        "\tcbz\tx16, 1f\n"
        "\tbr\tx16\n"
        "1:\tb\tslow_{name}\n"
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

#: Machines that there are stubs for.
MACHINES = ("x86_64", "aarch64")
_SECTION_MARK = {"x86_64": "@progbits", "aarch64": "%progbits"}


def stubs_s(hooks: Hooks, machine: str) -> str:
    """Write the stubs of one machine, `x86_64` or `aarch64`."""
    stub, ways = {"x86_64": (_X86_64, _X86_64_ON), "aarch64": (_AARCH64, _AARCH64_ON)}[machine]
    parts = [BANNER.format(what="Entries of the launch calls; see hook/gen/emit_stubs.py for what they promise.")]
    parts.append("\t.text\n\t.hidden\tvgpu_gate_at, vgpu_real\n")
    for name in hooks.stubs():
        on = ways[name in hooks.written].format(name=name, offset=8 * hooks.order.index(name))
        parts.append(stub.format(name=name, on=on))
    parts.append(f'\t.section .note.GNU-stack, "", {_SECTION_MARK[machine]}\n')
    return "\n".join(parts)


def _stream_of(function: Function) -> str:
    """C expression of the stream that a launch goes to; NULL where it names none."""
    for parameter in function.parameters:
        if parameter.type == "CUstream":
            return parameter.name
        if "CUlaunchConfig" in parameter.type:
            return f"{parameter.name} ? {parameter.name}->hStream : NULL"
    return "NULL"


def stubs_c(hooks: Hooks) -> str:
    """Write what the stubs go on to when the gate is not open or the driver's function is not known yet."""
    lines = [BANNER.format(what="Launches behind a gate that is not open.")]
    lines += ['#include "gate.h"', '#include "hooks.h"', ""]
    for name in hooks.stubs():
        function = hooks.functions[name]
        way = "hook" if name in hooks.written else "real"
        lines.append(
            f"{function.prototype('slow_')};\n{function.prototype('slow_')}\n{{\n\tstruct vgpu_launch launch;\n"
            f"\tCUresult error = vgpu_gate_enter(&launch, {_stream_of(function)});\n\n"
            f"\tif (error == CUDA_SUCCESS) {{\n\t\terror = {way}_{name}({function.argument_list()});\n"
            f"\t\tvgpu_gate_leave(&launch);\n\t}}\n\treturn error;\n}}\n"
        )
    return "\n".join(lines)
