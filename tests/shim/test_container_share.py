"""A share holds in a container that was made as a container runtime makes it.

An image of one program, another user without rights, the library through `/etc/ld.so.preload`, the hand-over mounted
read-only with its ledger over it, one of eight cards: the program gets its share and not more, whatever its variables
say, and the card's other figures stay the neighbours'.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from partage.model import names
from partage.run.libraries import find_library
from partage.shm import Policy, PolicyDevice, PolicyFile, create_ledger, create_turns
from partage.sim import profiles
from partage.sim.machine import Machine, create
from partage.sim.state import read_state
from partage.sim.tree import ContainerEdits, Mount, container_edits, write_tree
from tests.sim.conftest import sim_libraries
from tests.sim.container import Container, build_image, may_make

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GIB = 1 << 30
UID = 12345
READ_ONLY = ("ro", "nosuid", "nodev")

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("cc") or not may_make(),
    reason="making a container needs root, namespaces and a C compiler",
)


def hand_over(place: Path, uuid: str, memory: int) -> tuple[Mount, ...]:
    """Make a hand-over as the agent does, for a user who is not root, and return its two mounts."""
    place.mkdir(mode=0o755)
    create_turns(place / names.TURNS_FILE, 1)
    create_ledger(place / names.LEDGER_FILE, [uuid])
    (place / names.LEDGER_FILE).chmod(0o666)
    device = PolicyDevice(uuid=uuid, memory=memory, physical=80 * GIB)
    PolicyFile.create(place / names.POLICY_FILE, Policy(devices=(device,))).close()
    ledger = Mount(
        place / names.LEDGER_FILE, f"{names.HOST_ROOT}/{names.LEDGER_FILE}", ("rw", "nosuid", "nodev", "noexec")
    )
    return Mount(place, names.HOST_ROOT, (*READ_ONLY, "noexec")), ledger


@pytest.fixture
def make_edits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], ContainerEdits]:
    """A machine of eight cards; what a container with a share of one of them gets, by card and bytes."""
    monkeypatch.setenv("PARTAGE_SIM_DIR", str(tmp_path / "state"))
    create(profiles.find("8xh100"), shared=True)
    write_tree(tmp_path / "tree", sim_libraries())
    (tmp_path / "preload").write_text(f"{names.CONTAINER_LIBRARY}\n")
    library = Mount(find_library(), names.CONTAINER_LIBRARY, READ_ONLY)
    preload = Mount(tmp_path / "preload", "/etc/ld.so.preload", READ_ONLY)

    def make(card: int, memory: int) -> ContainerEdits:
        with Machine() as machine:
            uuid = read_state(machine).devices[card].uuid
        edits = container_edits(uuid)
        given = hand_over(tmp_path / f"share-{card}", uuid, memory)
        return replace(edits, mounts=(*edits.mounts, *given, library, preload))

    return make


def test_a_container_gets_its_share_and_not_more(
    make_edits: Callable[[int, int], ContainerEdits], tmp_path: Path
) -> None:
    image, edits = build_image(tmp_path), make_edits(3, 4 * GIB)
    with Container(image, edits, UID, GIB) as tenant:
        assert "ready" in tenant.lines, tenant.lines
        assert (tenant.lines["cuda"], tenant.lines["card"][0]) == (["1"], "3")
        with Machine() as machine:
            used = [device.used for device in read_state(machine).devices]
        assert used[3] > GIB
        assert used[:3] + used[4:] == [0] * 7
    with Container(image, edits, UID, 5 * GIB) as tenant:
        assert tenant.lines["error"] == ["cuMemAlloc_v2", "2"]
    lifted = replace(edits, env={**edits.env, names.ENV_DISABLE_CONTROL: "1", names.ENV_MEMORY_LIMIT: "0"})
    with Container(image, lifted, UID, 5 * GIB) as tenant:
        assert tenant.lines["error"] == ["cuMemAlloc_v2", "2"]
    with Container(image, replace(edits, env={}), UID, 5 * GIB) as tenant:
        assert tenant.lines["error"] == ["cuMemAlloc_v2", "2"], "with an empty environment"


def test_a_share_of_a_card_that_was_not_given_is_none(
    make_edits: Callable[[int, int], ContainerEdits], tmp_path: Path
) -> None:
    image, edits = build_image(tmp_path), make_edits(3, 4 * GIB)
    other = tuple(node for node in edits.nodes if node.target != "/dev/nvidia3")
    with Container(image, replace(edits, nodes=other), UID, GIB) as tenant:
        assert tenant.lines["error"] == ["cuInit", "100"]
