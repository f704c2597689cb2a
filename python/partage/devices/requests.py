"""One container's requests by resource name: numbers out of text, every problem noted with its place and a way out.

The vendors' `resources.py` read a container through `Requested` and answer with `Amounts`; `devices/ask.py` makes the
ask of them. A value that has no meaning is noted in `problems` and reads as not given, so that one pass finds all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from partage.devices.quantity import Quantity, parse_quantity
from partage.model.errors import Problem
from partage.model.grant import DEVICES_MAX
from partage.model.units import MI

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from partage.model.grant import Mode
    from partage.model.pod import ContainerView
    from partage.model.share import ShareClass

INT32_MAX: Final = (1 << 31) - 1
PERCENT: Final = 100
CorePolicy = Literal["", "default", "force", "disable"]


@dataclass(frozen=True, slots=True)
class AskOptions:
    """What an administrator decides about reading pods; the same for webhook, scheduler and command line.

    `memory_factor`: how many MiB one of `nvidia.com/gpumem` means; `default_cards` where a pod names memory or cores
    only (0: such pods are refused); `default_memory` in MiB (0: the whole card) and `default_cores` in percent where it
    names none; `core_policy`: how cores are held where the pod says no class; `confined`: whether pods with shares may
    have neither the host's pids nor SYS_ADMIN.
    """

    memory_factor: int = 1
    default_cards: int = 1
    default_memory: int = 0
    default_cores: int = 0
    core_policy: CorePolicy = ""
    confined: bool = True


@dataclass(frozen=True, slots=True)
class Amounts:
    """What a vendor's resources of one container mean.

    `memory` in bytes, `percent` and `cores` in permille, None where nothing is said; `share_class`: the vendor's word
    for it; `priority` 0 to 2. `written`: how the resources are to stand in the pod, None: not at all. `asked`: what
    was written where it was rounded, or where another amount counts instead. `annotations`: what the vendor's own
    programs look for in the pod.
    """

    backend: str
    resource: str
    cards: int
    memory: int | None = None
    percent: int | None = None
    cores: int | None = None
    priority: int | None = None
    share_class: ShareClass | None = None
    mode: Mode | None = None
    profile: str = ""
    written: Mapping[str, int | None] = field(default_factory=dict)
    asked: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Selectors:
    """Annotations by which pods choose among a vendor's cards, and by which they rule cards out.

    `is_uuid`: whether a card can have this UUID, `form` says which can: a misspelt one to be kept off keeps off none.
    """

    types: tuple[str, ...] = ()
    no_types: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    no_uuids: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    no_indexes: tuple[str, ...] = ()
    is_uuid: Callable[[str], bool] = bool
    form: str = ""


@dataclass(frozen=True, slots=True)
class Vendor:
    """A vendor's table. `kinds`: the resources that count cards or shares; `names`: all that are its; `read`: how.

    `look_alikes`: how names begin that can be meant for nothing else.

    `default`: the kind of which an amount without a count is; `amounts`: of which kind each amount is, where they are
    not all of any.
    """

    name: str
    kinds: tuple[str, ...]
    default: str
    names: frozenset[str]
    read: Callable[[Requested, Mapping[str, str], AskOptions], Amounts | None]
    look_alikes: tuple[str, ...] = ()
    selectors: Selectors = Selectors()
    amounts: Mapping[str, str] = field(default_factory=dict)


class Requested:
    """What one container asks for; limits and requests of such resources are one amount, as the API has it."""

    def __init__(self, container: ContainerView, problems: list[Problem]) -> None:
        self.name = container.name
        self.where = f"container {container.name or '(without a name)'}"
        self.problems = problems
        resources = container.resources
        self._limits = (resources.limits if resources else None) or {}
        self._requests = (resources.requests if resources else None) or {}
        #: All resources that it names, of ours or not.
        self.names = self._limits.keys() | self._requests.keys()

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def is_some(self, name: str) -> bool:
        """Whether it names an amount, and not 0 of it."""
        amount = parse_quantity(self.written(name)) if name in self else None
        return name in self and (amount is None or amount.value != 0)

    def written(self, name: str) -> str:
        """Return an amount as it stands there."""
        return str(self._limits.get(name, self._requests.get(name, "")))

    def note(self, name: str, value: str, accepted: str, step: str) -> None:
        """Note a problem with a resource of this container."""
        self.problems.append(Problem(f"{self.where}, {name}", value, accepted, step))

    def note_of_pod(self, problem: Problem) -> None:
        """Note a problem that each container of the pod would note again."""
        if problem not in self.problems:
            self.problems.append(problem)

    def quantity(self, name: str, accepted: str) -> Quantity | None:
        """Return the amount, None where it is absent or none."""
        found: list[Quantity] = []
        for values, part in ((self._limits, "limit"), (self._requests, "request")):
            if name in values:
                amount = parse_quantity(values[name])
                if amount is None:
                    self.note(name, f"{part} '{values[name]}' is no amount", accepted, "write one of these forms")
                    return None
                found.append(amount)
        if not found:
            return None
        if found[0].value != found[-1].value:
            value = f"limit '{self._limits[name]}', request '{self._requests[name]}'"
            self.note(name, value, "both the same, or the limit alone", "leave the request out")
            return None
        return found[0]

    def integer(self, name: str, high: int, meaning: str) -> int | None:
        """Return a whole number from 0 to `high`, None where it is absent or out of bounds."""
        accepted = f"accepted: {meaning}, a whole number from 0 to {high}"
        amount = self.quantity(name, accepted)
        if amount is None:
            return None
        if not amount.is_whole or amount.is_binary or not 0 <= amount.value <= high:
            self.note(name, f"'{self.written(name)}'", accepted, "write a number within these bounds")
            return None
        return int(amount.value)

    def cards(self, name: str, meaning: str = "how many cards") -> int | None:
        """Return how many cards, None where it is absent or out of bounds."""
        return self.integer(name, DEVICES_MAX, meaning)

    def memory(self, name: str, unit: int, unit_name: str) -> int | None:
        """Return bytes: a bare number counts `unit` bytes each, `4Gi` is what it says. None: absent, wrong, or 0."""
        accepted = f"accepted: a whole number of {unit_name} (4096) up to {INT32_MAX}, or 4Gi, 4096Mi"
        amount = self.quantity(name, accepted)
        if amount is None:
            return None
        found, step = f"'{self.written(name)}'", f"write {unit_name} as a number, or a binary unit"
        if amount.is_binary:
            number, scale = amount.value / MI, MI
        else:
            number, scale = amount.value, unit
        if amount.suffix in {"M", "G", "T", "P", "E"}:
            self.note(name, f"{found} is {amount.value:f} {unit_name} or decimal bytes", accepted, step)
        elif not (0 <= number <= INT32_MAX and number == number.to_integral_value()):
            self.note(name, found, accepted, step)
        else:
            return int(number) * scale or None
        return None
