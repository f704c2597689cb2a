"""Random small nodes and asks, such that all rules are met with: few cards, little room, every wish now and then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partage.model.need import Role
from partage.model.share import ShareClass
from partage.model.units import GI
from tests.scheduler.support import card, devices, nvlinks, shape, want

if TYPE_CHECKING:
    from random import Random

    from partage.model.ask import ContainerAsk, Shape
    from partage.model.node_devices import DeviceLink, NodeDevices

TYPES = ("NVIDIA A100-SXM4-80GB", "NVIDIA A10", "Tesla T4")
CLASSES = (ShareClass.FIXED, ShareClass.BURST, ShareClass.BEST_EFFORT)


def random_devices(random: Random, name: str) -> NodeDevices:
    count = random.randint(1, 4)
    memory = random.choice((16, 24, 80)) * GI
    kind = random.choice(TYPES)
    cards = [
        card(
            name,
            index,
            kind=random.choice(TYPES) if random.random() < 0.1 else kind,
            physical=memory,
            memory=memory - random.choice((0, 0, GI)),
            seats=random.choice((2, 3, 10)),
            numa=random.choice((0, 0, 1)),
            health=random.random() > 0.06,
            mode=random.choice(("shim",) * 12 + ("mig", "mps", "whole")),
            **({"qos": random.choice(CLASSES)} if random.random() < 0.1 else {}),
        )
        for index in range(count)
    ]
    joined = {(a, b) for a in range(count) for b in range(a + 1, count) if random.random() < 0.6}

    def link(a: int, b: int) -> DeviceLink:
        return nvlinks(random.choice((1, 4, 12))) if (a, b) in joined else nvlinks(0, kind="system")

    found = {(a, b): link(a, b) for a in range(count) for b in range(a + 1, count)}
    return devices(cards, lambda a, b: found[a, b], oversub=random.choice((1000, 1000, 1000, 1500)))


def random_shape(random: Random, uuids: list[str]) -> Shape:
    count = random.choice((1, 1, 1, 2, 2, 3))
    containers = [random_container(random, f"c{at}", count) for at in range(count)]
    return shape(*containers, **random_wishes(random, uuids))


def random_container(random: Random, name: str, beside: int) -> ContainerAsk:
    role = Role.APP if beside == 1 else random.choice((Role.APP, Role.APP, Role.INIT, Role.SIDECAR))
    fields: dict[str, Any] = {"role": role, "cards": random.choice((1,) * 8 + (2, 2, 2, 3, 5))}
    kind = random.randrange(8)
    if kind == 0:
        fields |= {"cores": 1000}
    elif kind == 1:
        fields |= {"percent": random.choice((100, 250, 333, 500, 1000))}
    elif kind == 2:
        fields |= {"cores": random.choice((0, 500))}
    else:
        fields |= {"memory": random.choice((1, 2, 4, 5, 8, 12, 16, 24, 40)) * GI + random.choice((0, 0, 1))}
    if "cores" not in fields:
        fields |= {"cores": random.choice((0, 0, 100, 300, 500, 1000))}
    if random.random() < 0.2:
        fields |= {"share_class": random.choice(CLASSES)}
    if random.random() < 0.08:
        fields |= {"mode": random.choice(("shim", "whole", "mig", "mps"))}
    if random.random() < 0.02:
        fields |= {"backend": "kunlun"}
    if fields.get("share_class") is ShareClass.FIXED and not fields["cores"]:
        del fields["share_class"]
    return want(name, **fields)


def random_wishes(random: Random, uuids: list[str]) -> dict[str, Any]:
    chance = random.random
    wishes: dict[str, Any] = {}
    if chance() < 0.15:
        wishes["types"] = tuple(random.sample(("A100", "a10", "T4", "NVIDIA-A100", "A100-80", "Tesla"), 2))
    if chance() < 0.1:
        wishes["no_types"] = (random.choice(("A100", "T4", "a10")),)
    if chance() < 0.1 and uuids:
        wishes["uuids"] = frozenset(random.sample(uuids, min(len(uuids), 3)))
    if chance() < 0.1 and uuids:
        wishes["no_uuids"] = frozenset(random.sample(uuids, min(len(uuids), 2)))
    if chance() < 0.1:
        wishes["indexes"] = frozenset(random.sample(range(4), 2))
    if chance() < 0.1:
        wishes["no_indexes"] = frozenset((random.randrange(4),))
    if chance() < 0.15:
        wishes["one_numa_node"] = True
    if chance() < 0.25:
        wishes["nvlink"] = random.choice(("required", "preferred"))
    if chance() < 0.6:
        words = ("binpack", "spread", "mutex", "numa", "topology-aware")
        wishes["card_policies"] = tuple(random.sample(words, random.randint(1, 3)))
    if chance() < 0.4:
        wishes["node_policy"] = random.choice(("binpack", "spread"))
    if chance() < 0.1:
        wishes["weights"] = (("slot", random.randrange(3)), ("core", 1), ("memory", random.randrange(4)))
    return wishes
