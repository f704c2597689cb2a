"""Answers of the API server that have no end: what a watch reads, whichever HTTP client brings it.

`Client` opens them by its own or by the `Streams` that it is given (`poster.py`). What can go wrong: the connection
breaks, or is silent for too long; the opener says which errors that is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator  # noqa: TC003 -- of a dataclass
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer whose head is there: HTTP's status, and what comes, cut anywhere."""

    status: int
    pieces: AsyncIterator[bytes]


class Streams(Protocol):
    """A way to the API server."""

    def stream(self, path: str, quiet_s: float) -> AbstractAsyncContextManager[Stream]:
        """Open an answer, which is given up after so long without a byte; raises ConnectionError, as does reading.

        KubeError where there is no login.
        """


async def lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines of a stream.

    Only a line feed ends one: a text splitter would also cut at U+0085 and its like, which anybody may write into an
    annotation and the API server does not escape.
    """
    rest = b""
    async for piece in pieces:
        rest += piece
        if b"\n" in piece:
            *whole, rest = rest.split(b"\n")
            for line in whole:
                if line.strip():
                    yield line
