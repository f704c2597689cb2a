"""Hooks of the calls behind which work is known to be over: they wait for a stream, event or context, or ask about it.

The gate learns here, without asking the driver, that what was launched is over (hook/shim/gate_told.c). A program that
has waited may also have got memory back into a stream-ordered pool: without a look at the pool it would stay charged to
the share until this process allocates again, and a neighbour in the container would be refused memory that nobody has.
A process that never used a pool and is under no gate pays two loads.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from emit import BANNER
from emit_stubs import stream_of

if TYPE_CHECKING:
    from emit_shim import Hooks

_CALL = re.compile(r"cu(Stream|Event|Ctx)(Synchronize|Query)(_v2)?(_ptsz)?")

_HOOK = """\
{hook}
{{
	struct vgpu_ticket ticket = vgpu_gate_ticket();
	CUresult result = real_{name}({arguments});

	if (result == CUDA_SUCCESS)
		vgpu_gate_told(&ticket, {what}, {stream});
{look}	return result;
}}
"""

_LOOK = """\
	if (vgpu_mode() != VGPU_FREE)
		vgpu_pools_synchronised();
"""


def synchronises(name: str) -> bool:
    """Whether a call waits for work, or asks whether it would have to."""
    return _CALL.fullmatch(name) is not None


def over(name: str) -> str:
    """C constant: what is over behind a call that succeeds. Of an event, and of any context, the marks tell."""
    if name.startswith("cuStream"):
        return "VGPU_OVER_STREAM"
    return "VGPU_OVER_CONTEXT" if name == "cuCtxSynchronize" else "VGPU_OVER_SOME"


def synchronise_c(hooks: Hooks) -> str:
    """Write the hooks."""
    lines = [BANNER.format(what="Calls after which work is known to be over.")]
    lines += ['#include "gate.h"', '#include "hooks.h"', '#include "memory.h"', ""]
    for name in hooks.synchronising():
        function = hooks.functions[name]
        lines.append(
            _HOOK.format(
                hook=function.prototype("hook_"),
                name=name,
                arguments=function.argument_list(),
                what=over(name),
                stream=stream_of(function),
                look="" if "Query" in name else _LOOK,
            )
        )
    return "\n".join(lines)
