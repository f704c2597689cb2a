"""The shim's generated layer: prototypes, calls to the driver, exports, refusals, device checks, version script.

Hooked are: metered, virtualised and refused names, launches (emit_stubs.py), copies and fills (emit_copies.py), calls
that wait (emit_synchronise.py), names that take a device (devices.py), and whatever hook/shim defines besides. A hook
that hook/shim does not define is generated: refused names and metered ones without code yet are refused under a limit,
names that take a device are passed on if the device was granted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from classes import METERED, REFUSED, VIRTUALISED
from devices import HELPERS, hidden_conditions
from emit import BANNER
from emit_copies import is_gated_copy, tells
from emit_stubs import is_stub
from emit_synchronise import synchronises

if TYPE_CHECKING:
    from api import Function, Header
    from symbols import Procedure

#: Base versions of glibc under which programs bind dlsym and dlvsym, by machine, besides GLIBC_2.34.
GLIBC_BASE = {"x86_64": "GLIBC_2.2.5", "aarch64": "GLIBC_2.17"}


def _is_copy(name: str, classes: dict[str, str]) -> bool:
    return is_gated_copy(name, classes) or tells(name, classes)


@dataclass(frozen=True)
class Hooks:
    """Every public name in the order of `vgpu_real[]`: hooked ones first, both parts sorted."""

    functions: dict[str, Function]
    hooked: list[str]
    others: list[str]
    written: set[str]
    classes: dict[str, str]

    @property
    def order(self) -> list[str]:
        """All names by index."""
        return self.hooked + self.others

    def stubs(self) -> list[str]:
        """Hooked names whose entry is a generated stub in assembler."""
        return [n for n in self.hooked if is_stub(n, self.classes)]

    def copies(self) -> list[str]:
        """Hooked names whose generated hook has to do with the gate (emit_copies.py)."""
        return [n for n in self.hooked if n not in self.written and _is_copy(n, self.classes)]

    def synchronising(self) -> list[str]:
        """Hooked names whose generated hook tells that work is over (emit_synchronise.py)."""
        return [n for n in self.hooked if n not in self.written and synchronises(n)]

    def entry(self, name: str) -> str:
        """Return the function that stands in for a hooked name."""
        return f"stub_{name}" if is_stub(name, self.classes) else f"hook_{name}"

    def generated_device(self) -> list[str]:
        """Hooked names whose generated hook checks the device."""
        refusable = (METERED, VIRTUALISED, REFUSED)
        others = [
            n
            for n in self.hooked
            if n not in self.written
            and not is_stub(n, self.classes)
            and not _is_copy(n, self.classes)
            and not synchronises(n)
        ]
        return [n for n in others if self.classes[n] not in refusable]

    def generated_refusal(self) -> list[str]:
        """Hooked names whose generated hook refuses under a limit."""
        refusable = (METERED, VIRTUALISED, REFUSED)
        return [n for n in self.hooked if n not in self.written and self.classes[n] in refusable]


def plan(headers: list[Header], classes: dict[str, str], written: set[str]) -> Hooks:
    """Decide what is hooked."""
    functions = {name: function for header in headers for name, function in header.functions.items()}
    hooked = [
        name
        for name, function in functions.items()
        if classes[name] in (METERED, VIRTUALISED, REFUSED)
        or name in written
        or is_stub(name, classes)
        or _is_copy(name, classes)
        or synchronises(name)
        or hidden_conditions(function)
    ]
    others = sorted(set(functions) - set(hooked))
    return Hooks(functions, sorted(hooked), others, written & set(functions), classes)


def _lacking(function: Function) -> str:
    if function.result == "const char *":
        return '"unknown error"'
    return "NVML_ERROR_FUNCTION_NOT_FOUND" if function.is_nvml else "CUDA_ERROR_NOT_FOUND"


def _real(function: Function) -> str:
    types = ", ".join(p.type for p in function.parameters) or "void"
    return (
        f"static inline {function.prototype('real_')}\n{{\n"
        f"\t{function.result} (*real_fn)({types}) = vgpu_real_get(VGPU_INDEX_{function.name});\n\n"
        f"\treturn real_fn ? real_fn({function.argument_list()}) : {_lacking(function)};\n}}\n"
    )


_HOOKS_H = """
#ifndef VGPU_HOOKS_H
#define VGPU_HOOKS_H

#include <cuda.h>
#include <nvml.h>
#include <stddef.h>

#define VGPU_HOOKS {hooks} /* hooked names: the first indices */
#define VGPU_REALS {reals} /* all public names */
#define VGPU_PROCS {procs} /* rows of vgpu_hook_proc */

extern void *vgpu_real[VGPU_REALS];                   /* the driver's functions; NULL = not looked up yet */
/* resolve.c, which owns vgpu_real: looks one up and stores it; NULL if the driver lacks it. */
void *vgpu_real_fn(unsigned index);
extern const char *const vgpu_hook_name[VGPU_REALS];  /* symbol by index; hooked part and rest are each sorted */
extern void *const vgpu_hook_fn[VGPU_HOOKS];          /* the hook by index */

/* Every (name, version, flags) for which the driver's cuGetProcAddress gives a hooked symbol. */
struct vgpu_proc {{
	const char *name;
	int         version;
	int         flags; /* CU_GET_PROC_ADDRESS_... */
	unsigned    hook;  /* index */
}};
extern const struct vgpu_proc vgpu_hook_proc[VGPU_PROCS];

static inline void *vgpu_real_get(unsigned index)
{{
	void *fn = __atomic_load_n(&vgpu_real[index], __ATOMIC_RELAXED);

	return fn ? fn : vgpu_real_fn(index);
}}
"""


def hooks_h(hooks: Hooks, headers: list[Header], procedures: list[Procedure]) -> str:
    """Write hooks.h: indices, tables, hook prototypes, and a `real_X` for every public name."""
    rows = _proc_rows(hooks, procedures)
    parts = [BANNER.format(what="Hooks of libvgpu.so and the driver's own functions.")]
    parts.append(_HOOKS_H.format(hooks=len(hooks.hooked), reals=len(hooks.order), procs=len(rows)))
    parts.append("enum vgpu_index {\n" + "".join(f"\tVGPU_INDEX_{name},\n" for name in hooks.order) + "};\n")
    for header in headers:
        parts += [f"{header.functions[alias].prototype()};" for alias in sorted(header.undeclared)]
    parts += [f"{hooks.functions[name].prototype('hook_')};" for name in hooks.hooked]
    parts += [f"{hooks.functions[name].prototype('stub_')};" for name in hooks.stubs()]
    parts.append("")
    parts += [_real(hooks.functions[name]) for name in hooks.order]
    parts.append("#endif\n")
    return "\n".join(parts)


def _proc_rows(hooks: Hooks, procedures: list[Procedure]) -> list[tuple[str, int, int, str]]:
    hooked = set(hooks.hooked)
    return [(p.base, p.version, 2 if p.per_thread else 0, p.symbol) for p in procedures if p.symbol in hooked]


def hooks_table_c(hooks: Hooks, procedures: list[Procedure]) -> str:
    """Write the tables that hooks.h declares."""
    lines = [BANNER.format(what="Tables of hooks."), '#include "hooks.h"', ""]
    lines += ["const char *const vgpu_hook_name[VGPU_REALS] = {", *(f'\t"{n}",' for n in hooks.order), "};", ""]
    lines += [
        "void *const vgpu_hook_fn[VGPU_HOOKS] = {",
        *(f"\t(void *){hooks.entry(n)}," for n in hooks.hooked),
        "};",
        "",
    ]
    lines += ["const struct vgpu_proc vgpu_hook_proc[VGPU_PROCS] = {"]
    rows = _proc_rows(hooks, procedures)
    lines += [f'\t{{"{base}", {version}, {flags}, VGPU_INDEX_{symbol}}},' for base, version, flags, symbol in rows]
    return "\n".join([*lines, "};", ""])


def hooks_export_c(hooks: Hooks) -> str:
    """Write the exported symbols: each jumps to its hook."""
    lines = [BANNER.format(what="Exported symbols."), '#include "hooks.h"', ""]
    for name in hooks.hooked:
        if is_stub(name, hooks.classes):
            continue
        function = hooks.functions[name]
        lines.append(
            f'__attribute__((visibility("default"))) {function.prototype()}\n'
            f"{{\n\treturn hook_{name}({function.argument_list()});\n}}\n"
        )
    return "\n".join(lines)


def refused_c(hooks: Hooks) -> str:
    """Hooks that refuse under a limit and pass on without one."""
    lines = [BANNER.format(what="Refused under a limit: ways to memory that are not metered.")]
    lines += ['#include "hooks.h"', '#include "shim.h"', ""]
    for name in hooks.generated_refusal():
        function = hooks.functions[name]
        error = "NVML_ERROR_NOT_SUPPORTED" if function.is_nvml else "CUDA_ERROR_NOT_SUPPORTED"
        lines.append(
            f"{function.prototype('hook_')}\n{{\n\tif (vgpu_mode() == VGPU_FREE)\n"
            f"\t\treturn real_{name}({function.argument_list()});\n\treturn {error};\n}}\n"
        )
    return "\n".join(lines)


def hooks_device_c(hooks: Hooks) -> str:
    """Hooks that pass on only calls about granted devices."""
    lines = [BANNER.format(what="Devices that were not granted do not exist.")]
    lines += ["#include <stdbool.h>", "", '#include "hooks.h"', '#include "shim.h"', "", HELPERS]
    for name in hooks.generated_device():
        function = hooks.functions[name]
        condition = " || ".join(f"({part})" if "&&" in part else part for part in hidden_conditions(function))
        if (
            condition.startswith("(")
            and condition.endswith(")")
            and condition.count("&&") == 1
            and "||" not in condition
        ):
            condition = condition[1:-1]
        lines.append(
            f"{function.prototype('hook_')}\n{{\n\tif ({condition})\n\t\treturn CUDA_ERROR_INVALID_DEVICE;\n"
            f"\treturn real_{name}({function.argument_list()});\n}}\n"
        )
    return "\n".join(lines)


def version_script(hooks: Hooks, machine: str) -> str:
    """Linker version script: hooked names, and dlsym and dlvsym under the versions that programs bind to."""
    base = GLIBC_BASE.get(machine, "GLIBC_2.17")
    lines = ["/* Generated by hook/gen: do not edit. What libvgpu.so exports; everything else is local. */"]
    lines += [f"{base} {{", "\tglobal: dlsym; dlvsym;", "};", "GLIBC_2.34 {", "\tglobal: dlsym; dlvsym;", f"}} {base};"]
    lines += ["VGPU_1 {", "\tglobal:", *(f"\t\t{name};" for name in hooks.hooked), "\tlocal: *;", "};", ""]
    return "\n".join(lines)
