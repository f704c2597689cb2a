"""The names that `filter` returned last, known again in the question of `prioritize` without reading them.

kube-scheduler asks `prioritize` with the very list that the answer to `filter` had, in its order: a thousand names that
need not be made anew, nor looked at one by one. Where the text is another it is read as any question is. Owned by the
extender's HTTP side. What can go wrong: a text that is no question; `read` raises UsageError.
"""

from __future__ import annotations

from typing import Final

import msgspec

from partage.model.pod import PodView  # noqa: TC001 -- msgspec reads annotations at run time
from partage.scheduler.protocol import Args, FilterAnswer, encode, read_args

_FIRST: Final = b'{"NodeNames":'


class _Unread(msgspec.Struct, frozen=True, rename="pascal"):
    """A question whose names are left as they came."""

    pod: PodView
    node_names: msgspec.Raw = msgspec.Raw(b"")


_UNREAD: Final = msgspec.json.Decoder(_Unread)


class Echo:
    """One list of names: as it is written and as it was made."""

    def __init__(self) -> None:
        self._text = b""
        self._names: list[str] = []

    def write(self, answer: FilterAnswer) -> bytes:
        """Return an answer as text, and keep its names."""
        text = encode(answer)
        if answer.node_names and text.startswith(_FIRST):
            # a name with a bracket in it makes a text here that is no list, and so nobody's question
            self._text, self._names = text[len(_FIRST) : text.index(b"]") + 1], answer.node_names
        return text

    def read(self, body: bytes) -> Args:
        """Return a question; where it has the names that are kept, with the same list of them."""
        try:
            unread = _UNREAD.decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return read_args(body)  # says what is wrong
        meta = unread.pod.metadata
        if bytes(unread.node_names) == self._text and self._text and meta.uid and meta.name and meta.namespace:
            return Args(unread.pod, self._names)
        return read_args(body)
