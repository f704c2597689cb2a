"""The generated assembler entries: every launch has one, for both machines, and each loads its own name's pointer."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import emit_shim
import emit_stubs
import pytest

if TYPE_CHECKING:
    from pathlib import Path

    import generate


@pytest.fixture
def hooks(inputs: generate.Inputs) -> emit_shim.Hooks:
    """The plan of this checkout."""
    return emit_shim.plan([inputs.cuda[13], inputs.nvml[13]], inputs.classes, set(inputs.hook_code))


def test_every_launch_has_a_stub_and_nothing_else(hooks: emit_shim.Hooks) -> None:
    """By the class table: kernel and graph launches of every kind and stream variant."""
    gated = {name for name, kind in hooks.classes.items() if kind == "GATED"}
    launches = {name for name in gated if "Launch" in name}
    assert set(hooks.stubs()) == launches
    assert {"cuLaunchKernel", "cuLaunchKernel_ptsz", "cuLaunchKernelEx", "cuLaunchGrid", "cuGraphLaunch"} <= launches


@pytest.mark.parametrize("machine", emit_stubs.MACHINES)
def test_each_stub_loads_its_own_pointer(hooks: emit_shim.Hooks, machine: str) -> None:
    """The offset in the table of the driver's functions is the name's; names with a hook of ours go there."""
    text = emit_stubs.stubs_s(hooks, machine)
    for body in text.split("\t.globl\t")[1:]:
        name = body.partition(",")[0]
        offsets = {int(offset) for offset in re.findall(r"vgpu_real\+(\d+)", body)}
        if name in hooks.written:
            assert not offsets
            assert f"hook_{name}" in body
        else:
            assert offsets == {8 * hooks.order.index(name)}, name
        assert f"slow_{name}" in body


def test_stubs_assemble_for_the_other_machine(hooks: emit_shim.Hooks, tmp_path: Path) -> None:
    """Clang assembles for both machines wherever it runs."""
    clang = shutil.which("clang")
    if clang is None:
        pytest.skip("no clang on this machine")
    for machine in emit_stubs.MACHINES:
        source = tmp_path / f"{machine}.S"
        source.write_text(emit_stubs.stubs_s(hooks, machine))
        command = [clang, f"--target={machine}-linux-gnu", "-c", str(source), "-o", str(tmp_path / f"{machine}.o")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
