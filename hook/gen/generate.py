"""Generate the entry layers of the simulated driver and of the shim from the headers and the class tables.

    python3 hook/gen/generate.py --headers build/headers --out build/generated [--check]

Called by CMake at configure time and whenever a source, a class table or a generator changes; writes only files that
change. `--check` writes nothing and fails on any public name without a class, any class without a name, and any metered
or virtualised name without a hook in hook/shim. Needs Python 3.11 and a C compiler; nothing else.
"""

from __future__ import annotations

import argparse
import ast
import sys
from dataclasses import dataclass
from pathlib import Path

import api
import classes
import emit_copies
import emit_shim
import emit_sim
import emit_stubs
import emit_synchronise
import sources
import symbols
from emit import BANNER, write_if_changed

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Inputs:
    """Everything that was read: headers and typedefs of 12 and 13, class tables, code found in sim and shim."""

    cuda: dict[int, api.Header]
    nvml: dict[int, api.Header]
    cuda_classes: dict[str, str]
    nvml_classes: dict[str, str]
    typedefs: dict[int, list[api.Typedef]]
    sim_code: dict[str, Path]
    hook_code: dict[str, Path]

    @property
    def classes(self) -> dict[str, str]:
        """All class tables in one."""
        return self.cuda_classes | self.nvml_classes

    def procedures(self, version: int) -> list[symbols.Procedure]:
        """Pair up what cuGetProcAddress answers by one header. Raises SymbolError."""
        return symbols.pair(self.cuda[version].functions, self.typedefs[version])


def read_inputs(headers: Path, root: Path) -> Inputs:
    """Read headers, class tables and sources. Raises ApiError or ClassError."""
    cuda = {version: api.read_cuda(headers / f"cuda{version}") for version in (12, 13)}
    nvml = {version: api.read_nvml(headers / f"nvml{version}") for version in (12, 13)}
    tables = root / "hook" / "include" / "partage"
    return Inputs(
        cuda,
        nvml,
        classes.read_classes(tables / "cuda_api.def"),
        classes.read_classes(tables / "nvml_api.def"),
        {version: api.read_typedefs(headers / f"cuda{version}") for version in (12, 13)},
        sources.defined(root / "hook" / "sim", "sim"),
        sources.defined(root / "hook" / "shim", "hook"),
    )


def coverage_problems(inputs: Inputs) -> list[str]:
    """Names without a class and classes without a name, in the headers of CUDA 12 and 13."""
    problems = classes.coverage_problems(inputs.cuda_classes, *(h.functions for h in inputs.cuda.values()))
    problems += classes.coverage_problems(inputs.nvml_classes, *(h.functions for h in inputs.nvml.values()))
    newest = set(inputs.cuda[13].functions) | set(inputs.nvml[13].functions)
    gone = (set(inputs.cuda[12].functions) | set(inputs.nvml[12].functions)) - newest
    return problems + [f"{name} is in the headers of CUDA 12 only: the entry layers lack it" for name in sorted(gone)]


def hook_problems(inputs: Inputs) -> list[str]:
    """Metered and virtualised names without a hook, and hooks or simulated functions of no public name."""
    problems = [
        f"{name} is {kind} but no file of hook/shim defines hook_{name}"
        for name, kind in sorted(inputs.classes.items())
        if kind in classes.WRITTEN and name not in inputs.hook_code
    ]
    for prefix, code in (("hook", inputs.hook_code), ("sim", inputs.sim_code)):
        stray = sorted(set(code) - set(inputs.classes))
        problems += [f"{code[name]} defines {prefix}_{name}, but {name} is no public name" for name in stray]
    return problems


def names_h(path: Path) -> str:
    """`NAME = "text"` constants of a Python module as C macros."""
    lines = [BANNER.format(what=f"Names from {path.name}."), "#ifndef PARTAGE_NAMES_H", "#define PARTAGE_NAMES_H", ""]
    for node in ast.parse(path.read_text()).body:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if isinstance(node, ast.AnnAssign):
            target = node.target
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            text = value.value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            lines.append(f'#define PARTAGE_{target.id} "{text}"')
    return "\n".join([*lines, "", "#endif", ""])


def outputs(inputs: Inputs, root: Path) -> dict[str, str]:
    """Relative path -> text of every generated file."""
    headers = [inputs.cuda[13], inputs.nvml[13]]
    procedures = inputs.procedures(13)
    impls: dict[str, emit_sim.Implementation] = {}
    for header in headers:
        impls |= emit_sim.implementations(header.functions, set(inputs.sim_code))
    hooks = emit_shim.plan(headers, inputs.classes, set(inputs.hook_code))
    files = {
        "sim_impl.h": emit_sim.sim_impl_h(headers),
        "sim_cuda_entry.c": emit_sim.entry_c(headers[0], impls, nvml=False),
        "sim_nvml_entry.c": emit_sim.entry_c(headers[1], impls, nvml=True),
        "sim_procaddr.c": emit_sim.procaddr_c(procedures),
        "sim_support.md": emit_sim.support_md(headers, impls),
        "hooks.h": emit_shim.hooks_h(hooks, headers, procedures),
        "hooks_table.c": emit_shim.hooks_table_c(hooks, procedures),
        "hooks_export.c": emit_shim.hooks_export_c(hooks),
        "hooks_device.c": emit_shim.hooks_device_c(hooks),
        "hooks_stubs.c": emit_stubs.stubs_c(hooks),
        "hooks_copies.c": emit_copies.copies_c(hooks),
        "hooks_synchronise.c": emit_synchronise.synchronise_c(hooks),
        **{f"stubs_{machine}.S": emit_stubs.stubs_s(hooks, machine) for machine in emit_stubs.MACHINES},
        "refused.c": emit_shim.refused_c(hooks),
        "vgpu.map": emit_shim.version_script(hooks, api.target_machine()),
    }
    names = root / "python" / "partage" / "model" / "names.py"
    if names.is_file():
        files["partage/names.h"] = names_h(names)
    return files


def main() -> int:
    """Command line; 0, or 1 with every problem on stderr."""
    parser = argparse.ArgumentParser(description="Generate the entry layers from the headers and the class tables.")
    parser.add_argument("--headers", type=Path, required=True, help="directory made by hook/gen/headers.py")
    parser.add_argument("--out", type=Path, required=True, help="directory for the generated files")
    parser.add_argument("--root", type=Path, default=ROOT, help="checkout to read tables and sources from")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a name lacks a class or a hook")
    options = parser.parse_args()
    try:
        inputs = read_inputs(options.headers, options.root)
        problems = coverage_problems(inputs) + (hook_problems(inputs) if options.check else [])
        if not problems and not options.check:
            for name, text in outputs(inputs, options.root).items():
                write_if_changed(options.out / name, text)
    except (api.ApiError, classes.ClassError, symbols.SymbolError, OSError) as error:
        problems = [str(error)]
    for problem in problems:
        print(f"generate: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
