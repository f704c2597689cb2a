"""What a container asks of NVIDIA cards: HAMi's resource names, the short form and Volcano's names, with defaults.

    nvidia.com/gpu                  how many cards, a share of each
    nvidia.com/gpumem               memory of each, MiB times the factor, or 4Gi; 0: as if not there
    nvidia.com/gpumem-percentage    the same in percent of a card; counts where gpumem does not
    nvidia.com/gpucores             percent of each card's time; 0: no guarantee
    nvidia.com/priority             0 latency-sensitive, 1 batch
    hami.io/gpu                     how many cards, with the annotations hami.io/gpu-memory and hami.io/gpu-core
    hami.io/gpumem, gpumem-percentage, gpucores             names that HAMi's own examples of other names have
    volcano.sh/vgpu-number, -memory, -memory-percentage, -cores

A name that only looks like one of these is refused: `nvidia.com/gpumemory` beside a card is no wish for all of it.
A whole card of which no cores are named is nobody else's (cores 100). Read through `devices/requests.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from partage.devices.nvidia.options import RESOURCE
from partage.devices.requests import INT32_MAX, PERCENT, Amounts, Selectors, Vendor
from partage.model.errors import Problem, UsageError
from partage.model.hami_twin import can_name
from partage.model.names import CLASS, HAMI_CORES, HAMI_MEMORY
from partage.model.share import CORES_MAX, ShareClass
from partage.model.units import CORES_FORMS, MI, parse_cores, parse_memory, whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partage.devices.requests import AskOptions, Requested
    from partage.model.grant import Mode

BACKEND: Final = "nvidia"
MEMORY: Final = "nvidia.com/gpumem"
PERCENTAGE: Final = "nvidia.com/gpumem-percentage"
CORES: Final = "nvidia.com/gpucores"
PRIORITY: Final = "nvidia.com/priority"
SHORT: Final = "hami.io/gpu"
VOLCANO: Final = "volcano.sh/vgpu-number"
KINDS: Final = (RESOURCE, SHORT, VOLCANO)
#: Other systems' names for the same things.
ALIASES: Final = {
    SHORT: RESOURCE,
    HAMI_MEMORY: MEMORY,
    HAMI_CORES: CORES,
    "hami.io/gpumem": MEMORY,
    "hami.io/gpumem-percentage": PERCENTAGE,
    "hami.io/gpucores": CORES,
    VOLCANO: RESOURCE,
    "volcano.sh/vgpu-memory": MEMORY,
    "volcano.sh/vgpu-memory-percentage": PERCENTAGE,
    "volcano.sh/vgpu-cores": CORES,
}
NAMES: Final = frozenset({RESOURCE, MEMORY, PERCENTAGE, CORES, PRIORITY, *ALIASES})
MODE: Final = "nvidia.com/vgpu-mode"
_MODES: Final[Mapping[str, Mode]] = {"hami-core": "shim", "mig": "mig", "mps": "mps"}
_PRIORITIES: Final = {0: 1, 1: 2}
_POLICIES: Final = {"force": ShareClass.FIXED, "default": ShareClass.BURST, "disable": ShareClass.BURST}


def read(asked: Requested, annotations: Mapping[str, str], options: AskOptions) -> Amounts | None:
    """Return what the container asks of NVIDIA cards, None for nothing. Problems are noted in `asked`."""
    here = {name: _spelled(asked, name) for name in (RESOURCE, MEMORY, PERCENTAGE, CORES)}
    cards = _cards(asked, here, options)
    memory = _memory(asked, here, annotations, options)
    percent = asked.integer(here[PERCENTAGE], PERCENT, "percent of a card's memory") or None
    cores = _cores(asked, here[CORES], annotations)
    priority = _priority(asked)
    mode = _mode(asked, annotations) if cards else None
    if not cards:
        return None
    both = memory is not None and asked.is_some(here[PERCENTAGE])
    if memory is None and percent is None and options.default_memory:
        memory = options.default_memory * MI
    if memory is not None or percent == PERCENT:
        percent = None
    if cores is None and options.default_cores:
        cores = options.default_cores * 10
    if cores is None and memory is None and percent is None and annotations.get(CLASS) != ShareClass.BEST_EFFORT.value:
        cores = CORES_MAX  # a whole card is nobody else's, unless the pod wants what others leave
    return Amounts(
        backend=BACKEND,
        resource=RESOURCE,
        cards=cards,
        memory=memory,
        percent=None if percent is None else percent * 10,
        cores=cores,
        priority=priority,
        share_class=_POLICIES.get(options.core_policy) if cores or options.core_policy != "force" else None,
        mode=mode,
        written=_written(asked, (cards, memory, percent, cores), options.memory_factor * MI),
        asked={here[PERCENTAGE]: asked.written(here[PERCENTAGE])} if both else {},
    )


def _spelled(asked: Requested, name: str) -> str:
    """Return under which name the container asks for this; two at once are one too many."""
    used = [name] if name in asked else []
    used += [alias for alias, means in ALIASES.items() if means == name and alias in asked]
    if len(used) > 1:
        value = " and ".join(f"{other} '{asked.written(other)}'" for other in used)
        asked.note(used[1], value, "one name for one thing", f"keep {used[0]}")
    return used[0] if used else name


def _cards(asked: Requested, here: Mapping[str, str], options: AskOptions) -> int:
    """Return how many cards are asked for, 0 for none."""
    amounts = [name for name in (here[MEMORY], here[PERCENTAGE], here[CORES]) if name in asked]
    if here[RESOURCE] in asked:
        cards = asked.cards(here[RESOURCE])
        used = [name for name in amounts if asked.is_some(name)]
        if cards == 0 and used:
            value = f"0 cards, but {used[0]} '{asked.written(used[0])}'"
            asked.note(
                here[RESOURCE], value, "1 card or more with an amount of it", f"raise it, or leave {used[0]} out"
            )
        return cards or 0
    if amounts and not options.default_cards:
        accepted = f"{RESOURCE} beside it, 1 or more"
        asked.note(amounts[0], f"'{asked.written(amounts[0])}' of no card", accepted, f"add {RESOURCE}: 1")
    return options.default_cards if amounts else 0


def _memory(
    asked: Requested, here: Mapping[str, str], annotations: Mapping[str, str], options: AskOptions
) -> int | None:
    name = here[MEMORY]
    unit_name = "MiB" if options.memory_factor == 1 else f"{options.memory_factor} MiB"
    if asked.is_some(name) or asked.is_some(here[PERCENTAGE]) or HAMI_MEMORY not in annotations:
        return asked.memory(name, options.memory_factor * MI, unit_name)
    text = annotations[HAMI_MEMORY].strip()
    accepted = "accepted: MiB (4096), 4Gi, 4096Mi"
    problem = Problem(f"annotation {HAMI_MEMORY}", f"'{text}'", accepted, "write one of these forms")
    number = whole_number(text)  # a bare one is MiB, whatever the cluster's factor
    try:
        amount = int(parse_memory(text)) if number is None else number * MI
    except UsageError:
        amount = -1
    if amount % MI or not 0 <= amount <= INT32_MAX * MI or (number is None and text[-1].isdigit()):
        asked.note_of_pod(problem)
        return None
    return amount or None


def _cores(asked: Requested, name: str, annotations: Mapping[str, str]) -> int | None:
    """Return permille: 0 where the container says 0, None where nobody says anything."""
    if name in asked or HAMI_CORES not in annotations:
        percent = asked.integer(name, PERCENT, "percent of each card's time")
        return None if percent is None else percent * 10
    text = annotations[HAMI_CORES].strip()
    if text in {"0", "0%"}:
        return 0
    try:
        return int(parse_cores(text))
    except UsageError:
        problem = Problem(
            f"annotation {HAMI_CORES}", f"'{text}'", f"{CORES_FORMS}; 0: none", "write one of these forms"
        )
        asked.note_of_pod(problem)
        return None


def _priority(asked: Requested) -> int | None:
    number = asked.integer(PRIORITY, max(_PRIORITIES), "0 (latency-sensitive) or 1 (batch)")
    return None if number is None else _PRIORITIES[number]


def _mode(asked: Requested, annotations: Mapping[str, str]) -> Mode | None:
    word = annotations.get(MODE, "").strip()
    if not word:
        return None
    if word not in _MODES:
        accepted = f"accepted: {', '.join(_MODES)}"
        asked.note_of_pod(Problem(f"annotation {MODE}", f"'{word}'", accepted, "write one of these, or leave it out"))
    return _MODES.get(word)


def _written(
    asked: Requested, found: tuple[int, int | None, int | None, int | None], unit: int
) -> Mapping[str, int | None]:
    """Return the resources as they are to stand in the pod: NVIDIA's names, plain numbers, defaults filled in.

    What cannot be said in them (0.1 % of cores, memory between two steps) stays where it is and is read from there.
    """
    cards, memory, percent, cores = found
    written: dict[str, int | None] = {alias: None for alias in ALIASES if alias in asked}
    written[RESOURCE] = cards
    if memory is not None and memory % unit == 0:
        written[MEMORY] = memory // unit
    if percent is not None:
        written[PERCENTAGE] = percent
    if cores is not None and cores % 10 == 0:
        written[CORES] = cores // 10
    return written


VENDOR: Final = Vendor(
    name=BACKEND,
    kinds=KINDS,
    default=RESOURCE,
    names=NAMES,
    read=read,
    look_alikes=("nvidia.com/gpu", "hami.io/", "volcano.sh/vgpu-"),
    selectors=Selectors(
        types=("nvidia.com/use-gputype",),
        no_types=("nvidia.com/nouse-gputype",),
        uuids=("nvidia.com/use-gpuuuid",),
        no_uuids=("nvidia.com/nouse-gpuuuid",),
        indexes=("nvidia.com/use-gpuindexes",),
        no_indexes=("nvidia.com/nouse-gpuindexes",),
        is_uuid=can_name,
        form="accepted: UUIDs as `nvidia-smi -L` has them (GPU-...), without quotes, several with commas",
    ),
)
