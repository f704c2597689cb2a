"""We test why names are not simulated: each such name has a reason, and the driver's names none by default."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import emit_sim
import unsupported

if TYPE_CHECKING:
    import generate


def without_code(inputs: generate.Inputs) -> set[str]:
    """Names that answer NOT_SUPPORTED."""
    return {
        name
        for header in (inputs.cuda[13], inputs.nvml[13])
        for name, impl in emit_sim.implementations(header.functions, set(inputs.sim_code)).items()
        if impl.function is None
    }


def test_every_name_without_code_has_a_reason(inputs: generate.Inputs) -> None:
    names = without_code(inputs)
    assert names
    assert {name for name in names if not unsupported.reason(name)} == set()


def test_names_of_the_driver_have_no_reason_by_default(inputs: generate.Inputs) -> None:
    assert unsupported.reason("cuMemAlloc_v2") is None
    assert unsupported.reason("cuSomethingNew") is None


def test_every_reason_ends_without_a_stop_and_fits_a_table() -> None:
    for pattern, why in unsupported.REASONS:
        re.compile(pattern)
        assert why, pattern
        assert not why.endswith("."), why
        assert "|" not in why, why
