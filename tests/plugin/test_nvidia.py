"""The agent with simulated NVIDIA cards behind it, kubelet in-process: seats follow the cards' health, one by one.

In a process of its own, since NVML belongs to a process for its life.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from partage.sim import machine, profiles

TOP = Path(__file__).resolve().parents[2]
_BEGIN = """
import asyncio, json, sys
from pathlib import Path
from partage.devices.nvidia.backend import NvidiaBackend
from partage.devices.nvidia.options import HealthOptions, Options
from partage.model.grant import GrantShare
from partage.sim import faults, tree
from partage.sim.machine import Machine
from partage_plugin.ports import MonotonicClock
from tests.plugin.world import World, part, pod_of

top, libraries = Path(sys.argv[1]), Path(sys.argv[2])

async def main():
    world = World(top)
    health = HealthOptions(probe_failed_s=0.05, quiet_s=0.0)
    world.backend = NvidiaBackend(Options(health=health), MonotonicClock(), libraries)
    await world.kubelet.start()
    found = []
    async with world.agent() as agent:
        await world.kubelet.registered()
        cards = list(agent.cards.by_uuid.values())
        def healthy(count):
            return world.kubelet.until(lambda kubelet: len(kubelet.healthy()) == count)
        with Machine() as there:
            await story(world, agent, there, cards, healthy, found)
    await world.kubelet.stop()
    world.backend.close()
    print(json.dumps(found))
"""
_END = """
asyncio.run(main())
"""


def play(top: Path, story: str) -> Any:
    """Run a story, text, on a board of eight; returns what it put into `found`."""
    libraries = Path(os.environ.get("PARTAGE_SIM_LIBRARIES", TOP / "build" / "sim"))
    if not (libraries / "libnvidia-ml.so.1").exists():
        pytest.skip(f"no simulated NVML in {libraries}: run make build")
    state, place = top / "sim", top / "w"
    place.mkdir()
    machine.create(profiles.find("8xh100"), state / "machine")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "PARTAGE_", "LD_"))}
    path = os.pathsep.join([str(TOP), str(TOP / "python"), str(TOP / "plugin")])
    where = {**kept, "PARTAGE_SIM_DIR": str(state), "PARTAGE_SIM_FORCE": "1", "PYTHONPATH": path}
    text = "async def story(world, agent, there, cards, healthy, found):\n" + textwrap.indent(
        textwrap.dedent(story), "    "
    )
    command = [sys.executable, "-c", _BEGIN + text + _END, str(place), str(libraries)]
    done = subprocess.run(command, env=where, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_one_of_eight_falls_off_the_bus_and_returns(tmp_path: Path) -> None:
    """XID 79: its ten seats go, seventy serve; XID 31 changes nothing; restored, all eighty are back."""
    found = play(
        tmp_path,
        """
        await healthy(80)
        faults.raise_xid(there, 4, 31)
        while not agent.cards.by_uuid[cards[3].uuid].reason.startswith("XID 79"):
            faults.restore_device(there, 3)  # a card that is lost before its events are listened to has no XID
            faults.lose_device(there, 3)
            await asyncio.sleep(0.2)
        await healthy(70)
        found.append([card.healthy for card in agent.cards.by_uuid.values()])
        found.append(agent.cards.by_uuid[cards[3].uuid].reason)
        faults.restore_device(there, 3)
        await healthy(80)
        found.append([card.healthy for card in agent.cards.by_uuid.values()])
        """,
    )
    assert found[0] == [index != 3 for index in range(8)]
    assert found[1].startswith("XID 79")
    assert found[2] == [True] * 8


def test_a_container_gets_its_simulated_card_and_one_of_a_failed_card_nothing(tmp_path: Path) -> None:
    spec, refused = play(
        tmp_path,
        """
        tree.write_tree(top / "tree", libraries)
        def share(card):
            return GrantShare(
                backend="nvidia", uuid=card.uuid, memory=8 << 30, cores=300, ceiling=300, weight=100
            )
        for uid, card in (("u1", cards[5]), ("u2", cards[6])):
            await world.pods.put(pod_of(uid, app=part(share(card))))
            if uid == "u2":
                while agent.cards.by_uuid[card.uuid].healthy:
                    faults.raise_xid(there, 6, 48)
                    await asyncio.sleep(0.2)
            entry = await world.kubelet.allocate(uid, f"default/pod-{uid}", "app")
            try:
                await world.kubelet.pre_start(entry)
                (path,) = world.places.cdi.iterdir()
                found.append(json.loads(path.read_text()))
            except Exception as error:
                found.append(error.details())
        """,
    )
    edits = spec["devices"][0]["containerEdits"]
    places = {mount["containerPath"] for mount in edits["mounts"]}
    assert {"/dev/nvidia5", "/dev/nvidiactl", "/run/partage-sim"} <= places
    assert "/dev/nvidia6" not in places
    assert "NVIDIA_VISIBLE_DEVICES=void" in edits["env"]
    assert "XID 48" in refused


def test_what_nvml_says_of_each_cards_use(tmp_path: Path) -> None:
    """Memory and utilization of every card; one that is lost has none, and after the end there is an error to count."""
    whole, rest, ended = play(
        tmp_path,
        """
        def seen():
            return {card.index: [now.used, now.busy, now.memory_busy, len(now.processes or {})]
                    for card in cards if (now := world.backend.use().get(card.uuid)) is not None}
        found.append(await asyncio.to_thread(seen))
        faults.lose_device(there, 3)
        found.append(sorted(await asyncio.to_thread(seen)))
        faults.restore_device(there, 3)
        world.backend.close()
        try:
            world.backend.use()
        except Exception as error:
            found.append(str(error))
        """,
    )
    assert set(whole) == {str(index) for index in range(8)}
    assert {tuple(figures) for figures in whole.values()} == {(0, 0, 0, 0)}, "nobody is on them"
    assert rest == [0, 1, 2, 4, 5, 6, 7]
    assert "was let go" in ended


@pytest.mark.parametrize("answer", ["UNKNOWN", "NO_PERMISSION", "NOT_SUPPORTED"])
def test_one_figure_that_nvml_does_not_give_costs_no_other(tmp_path: Path, answer: str) -> None:
    rates, listing, memory = play(
        tmp_path,
        f"""
        def seen():
            now = world.backend.use().get(cards[3].uuid)
            return None if now is None else [now.used is None, now.busy is None, now.processes is None]
        for calls in (
            ["nvmlDeviceGetUtilizationRates"],
            [f"nvmlDeviceGet{{kind}}RunningProcesses_v{{at}}" for kind in ("Compute", "Graphics") for at in (2, 3)],
            ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"],
        ):
            for call in calls:
                faults.arm(there, call, "NVML_ERROR_{answer}", device=3, count=0)
            found.append(await asyncio.to_thread(seen))
            faults.clear(there)
        """,
    )
    assert rates == [False, True, False]
    assert listing == [False, False, True]
    assert memory == ([True, False, False] if answer == "NOT_SUPPORTED" else None), "then the card does not answer"
