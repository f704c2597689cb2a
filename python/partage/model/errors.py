"""Every error that Partage raises on purpose.

    PartageError
    ├── UsageError          the caller asked for something that has no meaning (a unit, a class, an option)
    ├── ShareRefused        a share that cannot be promised: no such device, or the card is already promised
    ├── PolicyError         a policy file is missing, foreign, torn or corrupt
    ├── LedgerError         a ledger or turns file is missing, foreign, truncated or corrupt
    │   └── LedgerBusyError it cannot be opened for now, whatever is in it
    ├── DeviceError         the driver's libraries cannot be loaded or do not answer
    ├── LaunchError         a program cannot be started with a share, or was started without the library
    ├── NotFoundError       no hand-over, profile or fault of that name
    ├── GrantError          a pod's grant is missing, malformed, contradictory, or another pod's
    ├── AskError            a pod asks for shares in a way that has no meaning; lists every problem
    ├── NodeDevicesError    a node's device annotation cannot be read
    └── KubeError           the API server refuses a request, or does not answer

Each message has four parts: the object, the value found, the limit it met, the next step. `str(error)` is one line
with all four, which is what the command line prints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

SHOWN_MAX: Final = 200  # characters of a value in a message: an annotation has up to 256 KiB
PROBLEMS_MAX: Final = 8  # told in one line: a pod has hundreds of containers, and each node's answer has the line


class PartageError(Exception):
    """Base of all: what is wrong, in one line.

    `subject` is the object, `value` what was found there, `limit` what is allowed or expected, `step` what to do next.
    """

    def __init__(self, subject: str, value: object, limit: str, step: str) -> None:
        self.subject = subject
        self.value = value
        self.limit = limit
        self.step = step
        super().__init__(subject, value, limit, step)

    def __str__(self) -> str:
        return one_line(f"{self.subject}: {self.value}; {self.limit}; {self.step}")


def one_line(text: str) -> str:
    """Return text in one line, as a message is: parsers and servers write their part of one in several."""
    return " ".join(filter(None, map(str.strip, text.splitlines())))


class UsageError(PartageError):
    """The caller asked for something that has no meaning."""


class ShareRefused(PartageError):  # noqa: N818 -- a refusal is an answer, not a defect
    """A share that cannot be promised."""


class PolicyError(PartageError):
    """A policy file cannot be used; the container is closed."""


class LedgerError(PartageError):
    """A ledger or turns file cannot be used; whatever it says is not believed."""


class LedgerBusyError(LedgerError):
    """A ledger cannot be opened for now (a lease on it, no descriptor left); that says nothing of what is in it."""


class DeviceError(PartageError):
    """The driver's libraries cannot be loaded or do not answer."""


class LaunchError(PartageError):
    """A program cannot be started with a share, or runs without the library."""


class NotFoundError(PartageError):
    """No object of that name."""


class GrantError(PartageError):
    """A pod's grant cannot be used; its containers do not start."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with what a pod asks for: where, what was found, what is accepted, what to do."""

    where: str
    value: str
    accepted: str
    step: str

    def __str__(self) -> str:
        return f"{cut(self.where)}: {cut(self.value)}; {self.accepted}; {self.step}"


def cut(text: str, most: int = SHOWN_MAX) -> str:
    """Return what somebody else wrote, short enough that limit and step beside it are still read."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


class AskError(PartageError):
    """A pod asks for shares in a way that has no meaning. `problems`: all that is wrong with it, at least one."""

    def __init__(self, subject: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        first = self.problems[0]
        super().__init__(subject, f"{cut(first.where)}: {cut(first.value)}", first.accepted, first.step)

    def __str__(self) -> str:
        more = len(self.problems) - PROBLEMS_MAX
        told = [*map(str, self.problems[:PROBLEMS_MAX]), *([f"and {more} more"] if more > 0 else ())]
        return one_line(f"{self.subject}: " + " | ".join(told))


class NodeDevicesError(PartageError):
    """A node's device annotation cannot be used; the node counts as without cards."""


class KubeError(PartageError):
    """The API server refuses a request, or does not answer.

    `status` is HTTP's, 0 where no whole answer came; `reason` the API's own word for it, such as `AlreadyExists`;
    `causes` its words for what is behind that, such as `DisruptionBudget`.
    """

    def __init__(  # noqa: PLR0913 -- four parts of every message and those that programs ask for
        self,
        subject: str,
        value: object,
        limit: str,
        step: str,
        *,
        status: int = 0,
        reason: str = "",
        causes: frozenset[str] = frozenset(),
    ) -> None:
        self.status = status
        self.reason = reason
        self.causes = causes
        super().__init__(subject, value, limit, step)
