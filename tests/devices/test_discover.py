"""The cards of a node, by the simulated NVML: sizes, places and links; one that fails takes none of the others down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.devices.conftest import OnMachine

MI = 1 << 20
LOOK = """
with Nvml(libraries) as nvml:
    print(json.dumps(shown(Discovery(Options()).look(nvml))))
"""


def kinds(found: Any) -> list[list[tuple[str, int]]]:
    return [[(kind, lanes) for kind, lanes in row] for row in found["links"]]


def test_eight_cards_behind_switches(on_machine: OnMachine) -> None:
    found = on_machine("8xh100", LOOK)
    assert [card[1] for card in found["cards"]] == list(range(8))
    assert [card[5] for card in found["cards"]] == [0] * 4 + [1] * 4
    assert {card[2] for card in found["cards"]} == {"NVIDIA H100 80GB HBM3 SIMULATED"}
    assert {card[3] for card in found["cards"]} == {81559 * MI}
    assert {card[4] for card in found["cards"]} == {(81559 - 551) * MI}
    assert found["cards"][0][8] == "0000:1a:00.0"
    assert all(card[6] and not card[7] for card in found["cards"])
    links = kinds(found)
    for a in range(8):
        for b in range(8):
            assert links[a][b] == (("", 0) if a == b else ("nvswitch", 18))
    assert found["facts"]["mig.capable"] == "true"
    assert found["facts"]["driver"]
    assert found["facts"]["cuda"].startswith("1")


def test_pairs_with_a_bridge_meet_through_the_processors(on_machine: OnMachine) -> None:
    links = kinds(on_machine("4xa100-pcie", LOOK))
    for a in range(4):
        for b in range(4):
            pair = ("nvlink", 12) if a // 2 == b // 2 else ("system", 0)
            assert links[a][b] == (("", 0) if a == b else pair)


def test_cards_without_nvlink_are_as_far_as_their_nodes(on_machine: OnMachine) -> None:
    links = kinds(on_machine("rtx4090", LOOK))
    assert {link for row in links for link in row if link[0]} <= {("node", 0), ("system", 0)}


def test_a_card_in_mig_mode_is_listed_and_not_shared(on_machine: OnMachine) -> None:
    (card,) = on_machine("a100-mig", LOOK)["cards"]
    assert not card[6]
    assert "MIG mode" in card[7]


def test_a_lost_card_stays_listed_with_all_that_was_known_of_it(on_machine: OnMachine) -> None:
    before, lost, back = on_machine(
        "8xh100",
        """
        with Nvml(libraries) as nvml, Machine() as there:
            discovery = Discovery(Options())
            before = shown(discovery.look(nvml))
            faults.lose_device(there, 3)
            lost = shown(discovery.look(nvml))
            faults.restore_device(there, 3)
            print(json.dumps([before, lost, shown(discovery.look(nvml))]))
        """,
    )
    assert [card[6] for card in lost["cards"]] == [index != 3 for index in range(8)]
    assert "lost" in lost["cards"][3][7].lower()
    assert [card[:6] for card in lost["cards"]] == [card[:6] for card in before["cards"]]
    assert lost["links"] == before["links"]
    assert back == before


def test_one_card_for_which_nvml_answers_nothing_takes_no_other_down(on_machine: OnMachine) -> None:
    broken, whole = on_machine(
        "8xh100",
        """
        with Nvml(libraries) as nvml, Machine() as there:
            discovery = Discovery(Options())
            discovery.look(nvml)
            faults.break_nvml(there, 6, "NVML_ERROR_UNKNOWN")
            broken = shown(discovery.look(nvml))
            faults.clear(there)
            print(json.dumps([broken, shown(discovery.look(nvml))]))
        """,
    )
    assert [card[6] for card in broken["cards"]] == [index != 6 for index in range(8)]
    assert "Unknown" in broken["cards"][6][7]
    assert all(card[6] for card in whole["cards"])


def test_nvml_that_fails_as_a_whole_is_an_error_and_then_asked_anew(on_machine: OnMachine) -> None:
    said, cards = on_machine(
        "8xh100",
        """
        from partage.devices.nvidia.backend import NvidiaBackend
        from partage.model import DeviceError
        class Now:
            def now(self):
                return asyncio.get_running_loop().time()
            async def sleep(self, seconds):
                await asyncio.sleep(seconds)
        async def main():
            backend = NvidiaBackend(Options(), Now(), libraries)
            await backend.discover()
            with Machine() as there:
                faults.arm(there, "nvmlDeviceGetCount_v2", "NVML_ERROR_UNKNOWN", count=0)
                try:
                    said = await backend.discover()
                except DeviceError as error:
                    said = str(error)
                faults.clear(there)
            found = await backend.discover()
            backend.close()
            print(json.dumps([said, [card.healthy for card in found.cards]]))
        asyncio.run(main())
        """,
    )
    assert "NVML says" in said
    assert cards == [True] * 8


def test_a_card_that_failed_before_it_was_seen_is_named_by_the_kernel_module(
    on_machine: OnMachine, tmp_path: Path
) -> None:
    """C083: a card that is not ready at the start is published as failed, and as it is once it answers."""
    text = f"""
        proc = Path({str(tmp_path)!r}) / "proc"
        with Nvml(libraries) as nvml, Machine() as there:
            cards = [read_card(index) for index in range(nvml.count())]
            faults.lose_device(there, 2)
            nameless = shown(Discovery(Options(), proc=proc).look(nvml))
            for card in cards:
                place = proc / "gpus" / card.address
                place.mkdir(parents=True)
                (place / "information").write_text(
                    f"Model: \\t\\t {{card.name}}\\nGPU UUID: \\t {{card.uuid}}\\n"
                    f"Bus Location: \\t {{card.address}}\\nDevice Minor: \\t {{card.minor}}\\n"
                )
            named = shown(Discovery(Options(), proc=proc).look(nvml))
            faults.restore_device(there, 2)
            late = Discovery(Options(), proc=proc)
            faults.lose_device(there, 2)
            late.look(nvml)
            faults.restore_device(there, 2)
            ready = shown(late.look(nvml))
            print(json.dumps([nameless, named, ready, cards[2].uuid]))
        """
    nameless, named, ready, uuid = on_machine("8xh100", text)
    assert len(nameless["cards"]) == 7
    assert "card 2" in nameless["facts"]["unnamed"]
    assert len(named["cards"]) == 8
    assert named["cards"][2][0] == uuid
    assert not named["cards"][2][6]
    assert "unnamed" not in named["facts"]
    assert all(card[6] for card in ready["cards"])
    assert ready["cards"][2][3] == ready["cards"][1][3]


@pytest.mark.parametrize(("key", "left"), [("left_out_indexes=frozenset({0, 5})", 6), ("memory=5", 8)])
def test_cards_left_out_are_as_if_they_were_not_there(on_machine: OnMachine, key: str, left: int) -> None:
    found = on_machine(
        "8xh100",
        f"""
        with Nvml(libraries) as nvml:
            print(json.dumps(shown(Discovery(Options({key})).look(nvml))))
        """,
    )
    assert len(found["cards"]) == left
    assert len(found["links"]) == left
