"""We test that Python and libvgpu.so read every amount of memory alike, by asking the library's own parser."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from partage.model import UsageError, parse_memory

ROOT = Path(__file__).parents[2]
HEADERS = ROOT / "build/headers/cuda13"


@pytest.fixture(scope="module")
def parser(tmp_path_factory):
    if not (HEADERS / "cuda.h").exists():
        pytest.skip("no cuda.h: run `make build`")
    library = tmp_path_factory.mktemp("units") / "units.so"
    includes = [f"-I{ROOT / name}" for name in ("hook/shim", "hook/include")] + [f"-isystem{HEADERS}"]
    source = ROOT / "hook/shim/units.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", *includes, source, "-o", library], check=True)
    function = ctypes.CDLL(str(library)).vgpu_parse_size
    function.argtypes = (ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64))

    def parse(text: str) -> int | None:
        amount = ctypes.c_uint64()
        return amount.value if function(text.encode(), ctypes.byref(amount)) == 0 else None

    return parse


# Python alone refuses what no share can be: nothing, and more than a signed word holds.
def ours(text: str) -> int | None:
    try:
        return parse_memory(text)
    except UsageError:
        return None


def agree(parser, text: str) -> None:
    theirs = parser(text)
    assert ours(text) == (theirs if theirs and theirs < 1 << 63 else None)


SUFFIXES = ["", "b", "k", "Ki", "MiB", "g", "GIB", "tb", "bb", "i", "e"]
amounts = st.builds("{}{}".format, st.integers(0, 1 << 66), st.sampled_from(SUFFIXES))


@given(amounts)
@example("24Gi")
@example("9223372036854775807")
@example("18446744073709551616")
@example("8388607t")
@example("8388608t")
def test_amounts_are_read_alike(parser, text):
    agree(parser, text)


@given(st.text(st.characters(min_codepoint=1, max_codepoint=0x2200, exclude_categories=["Cs"]), max_size=8))
@example("24\u212ai")
@example("4\n")
def test_any_other_text_is_read_alike(parser, text):
    agree(parser, text)


@given(st.text("0123456789kKmMgGtTiIbB", max_size=6))
def test_near_misses_are_read_alike(parser, text):
    agree(parser, text)
