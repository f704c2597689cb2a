"""Amounts as users write them: memory and cores, parsed exactly or refused with the accepted forms.

The memory grammar is the one of libvgpu.so (`CUDA_DEVICE_MEMORY_LIMIT` and the like): a whole number, then nothing
(bytes) or one of k m g t with or without `i` and `b`, in either case, always powers of 1024. `4Gi` is never 4 bytes;
what does not fit the grammar is an error and never a guess. Inside, memory is bytes and cores are permille of a device.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final, NewType

from partage.model.errors import UsageError

Bytes = NewType("Bytes", int)
Permille = NewType("Permille", int)

KI: Final = 1 << 10
MI: Final = 1 << 20
GI: Final = 1 << 30
TI: Final = 1 << 40

MEMORY_FORMS: Final = "accepted: bytes (25769803776), 24Gi, 24g, 24576Mi, 24576m, 512k, 1t (powers of 1024)"
CORES_FORMS: Final = "accepted: 30, 30%, 30.5%, 305‰ (0.1 % to 100 % of one device)"

_MEMORY = re.compile(r"(\d+)(?:b|([kmgt])i?b?)?", re.IGNORECASE | re.ASCII)
_SCALE: Final = {"": 1, "k": KI, "m": MI, "g": GI, "t": TI}
_DIGITS: Final = 19  # of 2^63
_CORES = re.compile(r"(\d+(?:\.\d+)?) ?(%|‰)?", re.ASCII)


def whole_number(text: str) -> int | None:
    """Return the number that ASCII digits write, however many; None for anything else and for 2^63 and more."""
    digits = text.lstrip("0")
    if not (text.isascii() and text.isdigit()) or len(digits) > _DIGITS:
        return None  # Python itself raises ValueError for thousands of digits, which a tenant may write
    number = int(digits or "0")
    return number if number < 1 << 63 else None


def parse_memory(text: str) -> Bytes:
    """Return the bytes that `text` means.

    Raises UsageError for anything outside the grammar, for 0 and for 2^63 and more.
    """
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise UsageError(f"memory '{text}'", "not an amount", MEMORY_FORMS, "write the amount in one of these forms")
    number = whole_number(match[1])
    amount = -1 if number is None else number * _SCALE[(match[2] or "").lower()]
    if not 0 < amount < 1 << 63:
        found = "0 bytes" if amount == 0 else "2^63 bytes or more"
        raise UsageError(f"memory '{text}'", found, MEMORY_FORMS, "write 1 byte to 2^63 - 1")
    return Bytes(amount)


def parse_cores(text: str) -> Permille:
    """Return the permille of one device's time that `text` means (a bare number is percent).

    Raises UsageError for words, for negative amounts, for 0, for more than 100 % and for parts finer than 0.1 %.
    """
    match = _CORES.fullmatch(text)
    if match is None:
        raise UsageError(f"cores '{text}'", "not an amount", CORES_FORMS, "write the amount in one of these forms")
    permille = Decimal(match[1]) * (1 if match[2] == "‰" else 10)
    if permille != permille.to_integral_value():
        raise UsageError(f"cores '{text}'", f"{permille.normalize():f} ‰", CORES_FORMS, "round to 0.1 %")
    if not 0 < permille <= 1000:
        step = "write more than 0; leave the option out for no guarantee" if permille == 0 else "write at most 100 %"
        raise UsageError(f"cores '{text}'", f"{permille.normalize():f} ‰", CORES_FORMS, step)
    return Permille(int(permille))


def format_memory(amount: int) -> str:
    """Return `amount` bytes for people: the largest unit in which it is exact to two digits, e.g. `24 GiB`."""
    for name, scale in (("TiB", TI), ("GiB", GI), ("MiB", MI), ("KiB", KI)):
        if abs(amount) >= scale:
            return f"{amount / scale:.2f}".rstrip("0").rstrip(".") + f" {name}"
    return f"{amount} B"


def format_cores(permille: int) -> str:
    """Return permille as percent, e.g. `30 %` or `30.5 %`."""
    return f"{permille / 10:g} %"
