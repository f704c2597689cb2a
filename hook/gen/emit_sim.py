"""The simulated driver's public layer: entry points, prototypes for their code, tables.

Each public function counts the call, looks for an injected fault, runs `sim_X` where hook/sim has one (or its base
function for a `_ptsz`/`_ptds` variant, or a spelling with the same parameters), else answers NOT_SUPPORTED, and traces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emit import BANNER, unused
from symbols import Procedure, split_name
from unsupported import reason

if TYPE_CHECKING:
    from api import Function, Header

#: Answered before cuInit / nvmlInit: start-up, versions, error text, symbol look-up.
EARLY = {
    *("cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuGetExportTable"),
    *("cuGetProcAddress", "cuGetProcAddress_v2", "cuThreadExchangeStreamCaptureMode"),
    *("nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlErrorString"),
    *("nvmlSystemGetCudaDriverVersion", "nvmlSystemGetCudaDriverVersion_v2"),
}
#: Calls that no stream capture sees, so that one of the wrong mode forbids them (hook/sim/capture.h): synchronous ones.
_UNSAFE = re.compile(
    r"cuMemAlloc(Pitch|Managed|Host)?|cuMemFree(Host)?|cuMemHost(Alloc|Register|Unregister)|cuCtxSynchronize|"
    r"cuArray(3D)?Create|cuArrayDestroy|cuMipmappedArray(Create|Destroy)|"
    r"cuStream(Synchronize|Query)|"
    r"cuMemcpy(Peer|HtoD|DtoH|DtoD|DtoA|AtoD|HtoA|AtoH|AtoA|2D|2DUnaligned|3D|3DPeer)?|cuMemsetD(2D)?(8|16|32)"
)
#: These open the simulated machine before anything else, so that a fault armed there can fail them.
OPENS = {"cuInit", "nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags"}


@dataclass(frozen=True)
class Implementation:
    """How a public name is answered: the `sim_` function that runs (None: NOT_SUPPORTED), and whether per-thread."""

    function: str | None
    per_thread: bool = False
    own: bool = False


def implementations(functions: dict[str, Function], defined: set[str]) -> dict[str, Implementation]:
    """For every public name, how it is answered, given the names X that have a `sim_X`."""
    siblings: dict[tuple[str, str, str], list[tuple[int, str]]] = {}
    for name, function in functions.items():
        base, version, per_thread = split_name(name)
        siblings.setdefault((base, per_thread, function.type_list()), []).append((version, name))

    def shared(name: str) -> str | None:
        if name in defined:
            return name
        base, _, per_thread = split_name(name)
        same = sorted(siblings[base, per_thread, functions[name].type_list()], reverse=True)
        return next((other for _, other in same if other in defined), None)

    found = {}
    for name, function in functions.items():
        suffix = split_name(name)[2]
        plain = name.removesuffix(suffix) if suffix else name
        code = shared(name)
        if code is None and suffix and plain in functions and functions[plain].type_list() == function.type_list():
            found[name] = Implementation(shared(plain), per_thread=True)
        else:
            found[name] = Implementation(code, own=code == name)
    return found


def sim_impl_h(headers: list[Header]) -> str:
    """Prototypes of `sim_X` for every public name, and of public names that the headers declare only as macros."""
    lines = [
        BANNER.format(what="Prototypes for the simulated driver's code."),
        "#ifndef SIM_IMPL_H",
        "#define SIM_IMPL_H",
    ]
    lines += ["", "#include <cuda.h>", "#include <nvml.h>", "#include <stdbool.h>", ""]
    for header in headers:
        lines += [f"{header.functions[alias].prototype()};" for alias in sorted(header.undeclared)]
        lines += [f"{function.prototype('sim_')};" for function in header.functions.values()]
    lines += ["", "#endif", ""]
    return "\n".join(lines)


def entry_c(header: Header, impls: dict[str, Implementation], nvml: bool) -> str:
    """Write the public functions of one library, with their names, counters and the library's state for entry.c."""
    what = "The public functions of " + ("libnvidia-ml.so.1." if nvml else "libcuda.so.1.")
    success = "NVML_ERROR_NOT_SUPPORTED" if nvml else "CUDA_ERROR_NOT_SUPPORTED"
    lines = [BANNER.format(what=what), '#include "sim_impl.h"', '#include "entry.h"', '#include "sim.h"', ""]
    if not nvml:
        lines += ['#include "logs.h"', "", "bool sim_capture_prohibits(int *result);", ""]
    lines += ["const char *const sim_call_name[] = {", *(f'\t"{name}",' for name in header.functions), "};", ""]
    lines += [
        f"const unsigned sim_calls = {len(header.functions)};",
        f"uint64_t sim_call_count[{len(header.functions)}];",
    ]
    lines += [_state(nvml)]
    for index, function in enumerate(header.functions.values()):
        lines.append(_entry(index, function, impls[function.name], success))
    return "\n".join(lines)


def _state(nvml: bool) -> str:
    if nvml:
        return (
            "const int sim_entry_not_ready = NVML_ERROR_UNINITIALIZED;\n\nbool sim_nvml_initialized(void);\n\n"
            "bool sim_entry_ready(void)\n{\n\treturn sim_nvml_initialized();\n}\n\n"
            "int sim_entry_device(void)\n{\n\treturn -1; /* NVML has no current device */\n}\n\n"
            "void sim_entry_failed(unsigned call, int result)\n{\n\t(void)call;\n\t(void)result;\n}\n\n"
            "void sim_entry_idle(void)\n{\n}\n"
        )
    return (
        "_Thread_local struct sim_thread sim_thread;\nconst int sim_entry_not_ready = CUDA_ERROR_NOT_INITIALIZED;\n\n"
        "bool sim_entry_ready(void)\n{\n\treturn sim_initialized();\n}\n\n"
        "int sim_entry_device(void)\n{\n\tstruct sim_context *context = sim_current();\n\n"
        "\treturn context ? context->device : -1;\n}\n\n"
        "void sim_entry_failed(unsigned call, int result)\n{\n"
        "\tsim_logs_note(sim_call_name[call], result);\n}\n"
    )


def _entry(index: int, function: Function, impl: Implementation, not_supported: str) -> str:
    head = f'__attribute__((visibility("default"))) {function.prototype()}\n{{\n'
    call = f"sim_{impl.function}({function.argument_list()})"
    if function.result == "const char *":
        text = call if impl.function else '"not supported"'
        enter = f"\tint sim_result;\n\n\tsim_enter({index}, SIM_EARLY, &sim_result);\n"
        return f"{head}{enter}\tsim_leave({index}, 0);\n\treturn {text};\n}}\n"
    flags = [flag for flag, names in (("SIM_EARLY", EARLY), ("SIM_OPENS", OPENS)) if function.name in names]
    body = f"\tint sim_result;\n\n\tif (sim_enter({index}, {' | '.join(flags) or '0'}, &sim_result))\n"
    body += f"\t\treturn ({function.result})sim_leave({index}, sim_result);\n"
    if _UNSAFE.fullmatch(split_name(function.name)[0]):
        body += "\tif (sim_capture_prohibits(&sim_result))\n"
        body += f"\t\treturn ({function.result})sim_leave({index}, sim_result);\n"
    if impl.function is None:
        body += unused([parameter.name for parameter in function.parameters])
        body += f"\tsim_result = {not_supported};\n"
    elif impl.per_thread:
        body += "\tbool sim_outer = sim_thread.per_thread_stream;\n\tsim_thread.per_thread_stream = true;\n"
        body += f"\tsim_result = (int){call};\n\tsim_thread.per_thread_stream = sim_outer;\n"
    else:
        body += f"\tsim_result = (int){call};\n"
    return f"{head}{body}\treturn ({function.result})sim_leave({index}, sim_result);\n}}\n"


def procaddr_c(procedures: list[Procedure]) -> str:
    """CuGetProcAddress's table, sorted by name, plain before per-thread, rising versions."""
    lines = [BANNER.format(what="What cuGetProcAddress knows."), '#include "procaddr.h"', '#include "sim_impl.h"', ""]
    lines += [f"const unsigned sim_procs = {len(procedures)};", "const struct sim_proc sim_proc[] = {"]
    for p in sorted(procedures, key=lambda p: (p.base, p.per_thread, p.version)):
        flag = "true" if p.per_thread else "false"
        lines.append(f'\t{{"{p.base}", {p.version}, {flag}, (void *){p.symbol}, "{p.symbol}"}},')
    return "\n".join([*lines, "};", ""])


def support_md(headers: list[Header], impls: dict[str, Implementation]) -> str:
    """Write the support table as a Markdown page."""
    lines = ["# What the simulated driver supports", ""]
    lines += [
        "Every public entry point of the CUDA driver and of NVML exists. *own*: has code. *shared*: runs the code of"
    ]
    lines += [
        "another spelling with the same parameters. *per-thread*: runs the base function on the thread's own default"
    ]
    lines += [
        "stream. *no*, and why: answers `CUDA_ERROR_NOT_SUPPORTED` or `NVML_ERROR_NOT_SUPPORTED`.",
        "",
    ]
    for header in headers:
        names = list(header.functions)
        done = sum(1 for name in names if impls[name].function)
        lines += [f"## {header.path.name}: {done} of {len(names)}", "", "| entry point | support |", "|---|---|"]
        lines += [f"| `{name}` | {_support(name, impls[name])} |" for name in sorted(names)]
        lines.append("")
    return "\n".join(lines)


def _support(name: str, impl: Implementation) -> str:
    if impl.function is None:
        return f"no: {reason(name)}"
    if impl.own:
        return "own"
    return f"per-thread (`{impl.function}`)" if impl.per_thread else f"shared (`{impl.function}`)"
