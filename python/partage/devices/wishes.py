"""Which cards and nodes a pod wants: HAMi's, the vendors' and Partage's annotations as `Wishes`.

Called by `devices/ask.py`. An empty annotation is as one that is not there; a word that is not known is a problem, with
the list of those that are: a misspelt policy never means another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar, get_args

from partage.model import names
from partage.model.ask import CardPolicy, Wishes
from partage.model.errors import Problem, UsageError
from partage.model.share import ShareClass, parse_weight
from partage.model.units import CORES_FORMS, parse_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from partage.devices.requests import Vendor

NUMA_BIND: Final = "nvidia.com/numa-bind"
TERMS: Final = ("slot", "core", "memory")  # of HAMi's score of a card
WEIGHTS_MAX: Final = 1000
INDEX_MAX: Final = 1023
ITEMS_MAX: Final = 256
_T = TypeVar("_T")
_WEIGHT_FORMS: Final = "accepted: slot=1,core=1,memory=1, not all of them 0"
_SWITCH: Final = {"true": True, "false": False}
TYPE_FORMS: Final = "accepted: words of product names (A100, A100-SXM4-80GB), several with commas"


class Annotated:
    """A pod's annotations, read strictly; problems are noted, and such an annotation reads as not given."""

    def __init__(self, annotations: Mapping[str, str], problems: list[Problem]) -> None:
        self._annotations = annotations
        self._problems = problems

    def text(self, key: str) -> str:
        """Return the value without blanks around it, empty where there is none."""
        return self._annotations.get(key, "").strip()

    def note(self, key: str, accepted: str, step: str = "write one of these, or leave it out") -> None:
        """Note that a value has no meaning."""
        self._problems.append(Problem(f"annotation {key}", f"'{self._annotations.get(key, '')}'", accepted, step))

    def word(self, key: str, accepted: Mapping[str, _T]) -> _T | None:
        """Return what one of these words means, None where it is absent or another."""
        text = self.text(key)
        if text and text not in accepted:
            self.note(key, f"accepted: {', '.join(accepted)}")
        return accepted.get(text)

    def items(self, keys: Sequence[str], is_one: Callable[[str], bool] = bool, accepted: str = "") -> list[str]:
        """Return the elements of comma lists, blanks and empty ones left out; a list with one that is none is noted."""
        found: list[str] = []
        for key in keys:
            named = [item for item in map(str.strip, self.text(key).split(",")) if item]
            if all(map(is_one, named)):
                found += named
            else:
                self.note(key, accepted)
        if len(found) > ITEMS_MAX:
            self.note(next(iter(keys)), f"at most {ITEMS_MAX} elements", "name fewer")
            return []
        return found

    def parsed(self, key: str, parse: Callable[[str], _T], accepted: str) -> _T | None:
        """Return what `parse` makes of the value, None where it is absent or raises UsageError."""
        text = self.text(key)
        try:
            return parse(text) if text else None
        except UsageError:
            self.note(key, accepted)
            return None


def read_wishes(annotated: Annotated, vendors: Sequence[Vendor]) -> Wishes:
    """Return what a pod that asks for cards of these vendors wishes; problems are noted."""
    selectors = [vendor.selectors for vendor in vendors]
    one_numa = annotated.word(NUMA_BIND, _SWITCH)
    return Wishes(
        node_policy=annotated.word(names.HAMI_NODE_POLICY, {"binpack": "binpack", "spread": "spread"}),
        card_policies=_chain(annotated),
        weights=annotated.parsed(names.HAMI_WEIGHTS, _weights, "accepted: slot=1,core=1,memory=1, not all of them 0")
        or (),
        types=tuple(annotated.items([key for each in selectors for key in each.types], _is_type, TYPE_FORMS)),
        no_types=tuple(annotated.items([key for each in selectors for key in each.no_types], _is_type, TYPE_FORMS)),
        uuids=frozenset(uuid for each in selectors for uuid in annotated.items(each.uuids, each.is_uuid, each.form)),
        no_uuids=frozenset(
            uuid for each in selectors for uuid in annotated.items(each.no_uuids, each.is_uuid, each.form)
        ),
        indexes=_indexes(annotated, [names.USE_INDEX, *(key for each in selectors for key in each.indexes)]),
        no_indexes=_indexes(annotated, [names.NO_USE_INDEX, *(key for each in selectors for key in each.no_indexes)]),
        one_numa_node=bool(one_numa),
        nvlink=annotated.word(names.NVLINK, {"required": "required", "preferred": "preferred"}),
    )


def _is_type(text: str) -> bool:
    """Whether a wanted type has a word of a product name: one that has none would fit every card, or none."""
    return any(letter.isascii() and letter.isalnum() for letter in text)


def _chain(annotated: Annotated) -> tuple[CardPolicy, ...]:
    """Return the policies of a comma list, in its order."""
    known: dict[str, CardPolicy] = {policy: policy for policy in get_args(CardPolicy)}
    words = annotated.items([names.HAMI_CARD_POLICY])
    if len(set(words)) != len(words) or any(word not in known for word in words):
        annotated.note(names.HAMI_CARD_POLICY, f"accepted: {', '.join(known)}, or several with commas, each once")
        return ()
    return tuple(known[word] for word in words)


def _weights(text: str) -> tuple[tuple[str, int], ...]:
    """Return the terms' weights in the order of `TERMS`; raises UsageError."""
    pairs = dict(part.split("=", 1) for part in map(str.strip, text.split(",")) if "=" in part)
    found = {term.strip(): number.strip() for term, number in pairs.items()}
    numbers = [found.get(term, "") for term in TERMS]
    whole = all(number.isascii() and number.isdigit() and len(number) <= 4 for number in numbers)
    if set(found) != set(TERMS) or text.count(",") != len(TERMS) - 1 or not whole:
        raise UsageError(names.HAMI_WEIGHTS, text, "all three terms, once each", "name them all")
    weights = [int(number) for number in numbers]
    if not any(weights) or max(weights) > WEIGHTS_MAX:
        raise UsageError(names.HAMI_WEIGHTS, text, f"0 to {WEIGHTS_MAX}, not all of them 0", "raise one")
    return tuple(zip(TERMS, weights, strict=True))


def _indexes(annotated: Annotated, keys: Iterable[str]) -> frozenset[int]:
    """Return the indexes of these annotations together."""
    together: set[int] = set()
    for key in keys:
        found = annotated.items([key])
        if all(item.isascii() and item.isdigit() and len(item) <= 4 and int(item) <= INDEX_MAX for item in found):
            together.update(map(int, found))
        else:
            annotated.note(key, f"accepted: whole numbers from 0 to {INDEX_MAX}, several with commas")
    return frozenset(together)


def read_class(annotated: Annotated) -> ShareClass | None:
    """Return the class that the pod names."""
    return annotated.word(names.CLASS, {each.value: each for each in ShareClass})


def read_weight(annotated: Annotated) -> int | None:
    """Return the weight that the pod names."""
    return annotated.parsed(names.WEIGHT, parse_weight, "accepted: a whole number from 1 to 10000")


def read_ceiling(annotated: Annotated) -> int | None:
    """Return the ceiling that the pod names, in permille."""
    return annotated.parsed(names.CEILING, lambda text: int(parse_cores(text)), CORES_FORMS)
