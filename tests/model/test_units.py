"""We test these aspects of units: every accepted form means one exact amount, everything else is refused with the
accepted forms, and no text whatever raises anything but UsageError."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.model import UsageError, format_cores, format_memory, parse_cores, parse_memory

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("24Gi", 24 * GIB),
        ("24g", 24 * GIB),
        ("24G", 24 * GIB),
        ("24GiB", 24 * GIB),
        ("24576m", 24 * GIB),
        ("24576Mi", 24 * GIB),
        ("4g", 4 * GIB),
        ("4096m", 4 * GIB),
        ("512k", 512 << 10),
        ("1t", 1 << 40),
        ("25769803776", 24 * GIB),
        ("4b", 4),
        ("1", 1),
        ("9223372036854775807", (1 << 63) - 1),
    ],
)
def test_memory_is_exact(text, amount):
    assert parse_memory(text) == amount


@pytest.mark.parametrize(
    "text",
    ["", "Gi", "24 Gi", " 24Gi", "24Gi ", "-1", "+1", "1.5Gi", "1e9", "0x10", "4x", "4gg", "24Gib/s", "0", "0Gi",
     "9223372036854775808", "8388608t", "١٢", "24\u212ai", "4m\n"],
)  # fmt: skip
def test_other_memory_is_refused_with_the_forms(text):
    with pytest.raises(UsageError, match="accepted: bytes"):
        parse_memory(text)


@pytest.mark.parametrize(
    ("text", "permille"),
    [
        ("30", 300),
        ("30%", 300),
        ("30 %", 300),
        ("30.5%", 305),
        ("305‰", 305),
        ("0.1", 1),
        ("100", 1000),
        ("30.50", 305),
    ],
)
def test_cores_are_exact(text, permille):
    assert parse_cores(text) == permille


@pytest.mark.parametrize(
    "text",
    ["", "%", "half", "-5", "0", "0%", "0.0", "100.1", "1001‰", "30.55", "0.5‰", "1e1", "٣٠", "30%%", "nan", "30\n"],
)
def test_other_cores_are_refused_with_the_forms(text):
    with pytest.raises(UsageError, match="accepted: 30"):
        parse_cores(text)


@given(st.text(max_size=12))
def test_no_text_raises_anything_else(text):
    for parse in (parse_memory, parse_cores):
        with contextlib.suppress(UsageError):
            assert parse(text) > 0


@given(st.integers(1, (1 << 63) - 1))
def test_plain_bytes_are_themselves(amount):
    assert parse_memory(str(amount)) == amount


def test_amounts_for_people():
    assert [format_memory(n) for n in (0, 1023, 24 * GIB, 1 << 20, 3 << 29)] == [
        "0 B",
        "1023 B",
        "24 GiB",
        "1 MiB",
        "1.5 GiB",
    ]
    assert [format_cores(n) for n in (300, 305)] == ["30 %", "30.5 %"]
