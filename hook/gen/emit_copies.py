"""Hooks of the copies and fills: those on the device wait for a turn where they are large, others tell what is over.

A copy of class GATED goes from device memory to device memory, or may: which it is and how large, its parameters say.
Where the gate word is 0 it costs one comparison. A copy between host and device that returns when it is done is passed
on (hook/shim/gate_copy.c says why), and the gate learns that what its stream was given before has run.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from classes import FORWARDED, GATED
from emit import BANNER
from emit_stubs import stream_of

if TYPE_CHECKING:
    from api import Function
    from emit_shim import Hooks

_FILL = re.compile(r"cuMemsetD(2D)?(8|16|32)(Async)?(_|$)")
_ON_DEVICE = re.compile(r"cuMemcpy(DtoD|DtoA|AtoD|AtoA)")
_TO_HOST = re.compile(r"cuMemcpy(DtoH|AtoH)(_|$)")
_BOX = re.compile(r"cuMemcpy(2D|3D)(Unaligned|Async)?(_|$)")


def is_gated_copy(name: str, classes: dict[str, str]) -> bool:
    """Whether a call is a copy or fill that may have to wait."""
    return classes[name] == GATED and re.match(r"cuMem(cpy|set|Batch)", name) is not None


def tells(name: str, classes: dict[str, str]) -> bool:
    """Whether a call is a copy between host and device that returns when it is done, or nearly."""
    return classes[name] == FORWARDED and name.startswith("cuMemcpy") and "Async" not in name


def _bytes_of_fill(fill: re.Match[str]) -> str:
    count = "(uint64_t)Width * Height" if fill[1] else "(uint64_t)N"
    return f"{count} * {int(fill[2]) // 8}"


def _box(three: bool) -> str:
    depth = " * pCopy->Depth" if three else ""
    return (
        "pCopy && vgpu_gate_box(pCopy->dstMemoryType, pCopy->dstDevice, pCopy->srcMemoryType, pCopy->srcDevice, "
        f"(uint64_t)pCopy->WidthInBytes * pCopy->Height{depth})"
    )


#: By parameters, for copies whose names do not say which sides they have.
_BY_PARAMETER = {
    "ByteCount": "vgpu_gate_between(dst, src, ByteCount)",
    "size": "vgpu_gate_between(dst, src, size)",
    "dsts": "vgpu_gate_batch(dsts, srcs, sizes, count)",
    "opList": "vgpu_gate_boxes(opList, numOps)",
    "op": "vgpu_gate_boxes(op, 1)",
    "paramsArray": "true",  # decompression
}


def large(function: Function) -> str:
    """C expression: the call has to wait while the gate is shut. Raises KeyError for a copy of unknown parameters."""
    name = function.name
    if fill := _FILL.match(name):
        return f"vgpu_gate_large({_bytes_of_fill(fill)})"
    if _ON_DEVICE.match(name):
        return "vgpu_gate_large(ByteCount)"
    if box := _BOX.match(name):
        return _box(box[1] == "3D")
    for parameter in function.parameters:
        if parameter.name in _BY_PARAMETER:
            return _BY_PARAMETER[parameter.name]
    raise KeyError(name)


_GATED = """\
{hook}
{{
	if (__builtin_expect(__atomic_load_n(vgpu_gate_at, __ATOMIC_RELAXED) == 0, 1) || !({large}))
		return real_{name}({arguments});
	struct vgpu_launch launch = {{.stream = {stream}, .work = VGPU_WORK_COPY}};
	vgpu_gate_enter(&launch);
	CUresult result = real_{name}({arguments});
	vgpu_gate_leave(&launch, result);
	return result;
}}
"""

_TELLS = """\
{hook}
{{
	struct vgpu_ticket ticket = vgpu_gate_ticket();
	CUresult result = real_{name}({arguments});

	if (result == CUDA_SUCCESS)
		vgpu_gate_told(&ticket, {what}, {stream});
	return result;
}}
"""


def copies_c(hooks: Hooks) -> str:
    """Write the hooks."""
    lines = [BANNER.format(what="Copies and fills.")]
    lines += ['#include "gate.h"', '#include "hooks.h"', ""]
    for name in hooks.copies():
        function = hooks.functions[name]
        hook, arguments = function.prototype("hook_"), function.argument_list()
        if is_gated_copy(name, hooks.classes):
            condition = large(function)
            text = _GATED.format(hook=hook, name=name, arguments=arguments, stream=stream_of(function), large=condition)
        else:
            what = "VGPU_OVER_STREAM" if _TO_HOST.match(name) else "VGPU_OVER_SOME"
            text = _TELLS.format(hook=hook, name=name, arguments=arguments, stream=stream_of(function), what=what)
        lines.append(text)
    return "\n".join(lines)
