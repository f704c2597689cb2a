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


#: What NVML may not say of a card, and a card is served without: nvml.h lets any call end so.
DISPENSABLE = (
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetMemoryAffinity",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetP2PStatus",
)
NEEDED = (
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetComputeMode",
)
ANSWERS = (
    "NOT_SUPPORTED",
    "FUNCTION_NOT_FOUND",
    "NO_PERMISSION",
    "UNKNOWN",
    "GPU_IS_LOST",
    "TIMEOUT",
    "INVALID_ARGUMENT",
)


def test_what_nvml_does_not_say_of_a_card_costs_the_others_nothing_and_the_card_only_what_it_needs(
    on_machine: OnMachine,
) -> None:
    """Each call, each answer, before and after the card was seen; discovery and health agree on what a failure is."""
    found = on_machine(
        "8xh100",
        f"""
        from dataclasses import replace
        found = []
        with Nvml(libraries) as nvml, Machine() as there:
            seen = Discovery(Options())
            seen.look(nvml)
            uuid = read_card(6).uuid
            for call in {(*DISPENSABLE, *NEEDED)}:
                for answer in {ANSWERS}:
                    faults.arm(there, call, "NVML_ERROR_" + answer, device=6, count=0)
                    new, old = shown(Discovery(Options()).look(nvml)), shown(seen.look(nvml))
                    said = ask(uuid)
                    faults.clear(there)
                    healthy = [[card[6] for card in look["cards"] if card[1] != 6] for look in (new, old)]
                    six = [[card[7] for card in look["cards"] if card[1] == 6] for look in (new, old)]
                    named = "card 6" in new["facts"].get("unnamed", "")
                    found.append([call, answer, healthy, six, said.fault, named])
        print(json.dumps(found))
        """,
    )
    assert len(found) == (len(DISPENSABLE) + len(NEEDED)) * len(ANSWERS)
    for call, answer, healthy, (new, old), fault, named in found:
        case = f"{call}: {answer}"
        assert healthy == [[True] * 7] * 2, case
        assert old == [fault], f"{case}: discovery and health do not agree"
        assert new == [fault] or (fault and named), f"{case}: neither served nor named"
        if call in DISPENSABLE:
            assert not fault, case


def test_links_are_what_was_last_seen_of_them_while_one_card_cannot_be_asked(on_machine: OnMachine) -> None:
    """A passing fault moves no pod to other cards; and a card that was never asked is as far as can be."""
    before, during, after, new = on_machine(
        "8xh100",
        """
        with Nvml(libraries) as nvml, Machine() as there:
            discovery = Discovery(Options())
            before, during = shown(discovery.look(nvml)), []
            for call in ("nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetP2PStatus"):
                faults.arm(there, call, "NVML_ERROR_UNKNOWN", device=6, count=0)
                during.append(shown(discovery.look(nvml)))
                new = shown(Discovery(Options()).look(nvml))
                faults.clear(there)
            print(json.dumps([before, during, shown(discovery.look(nvml)), new]))
        """,
    )
    assert during == [before] * 3
    assert after == before
    assert kinds(new)[6][:6] == [("system", 0)] * 6
    assert kinds(new)[5] == [*kinds(before)[5][:6], ("system", 0), *kinds(before)[5][7:]]


@pytest.mark.parametrize(
    ("mode", "seats", "word"), [(2, 10, "PROHIBITED"), (3, 10, "EXCLUSIVE_PROCESS"), (2, 1, "PROH"), (3, 1, "")]
)
def test_a_compute_mode_that_keeps_tenants_out_is_told(on_machine: OnMachine, mode: int, seats: int, word: str) -> None:
    """EXCLUSIVE_PROCESS: the second program gets no context; PROHIBITED: none does (CUcomputemode, cuda.h)."""
    cards = on_machine(
        "8xh100",
        f"""
        import pynvml
        asked = pynvml.nvmlDeviceGetIndex
        pynvml.nvmlDeviceGetComputeMode = lambda handle: {mode} if asked(handle) == 2 else 0
        with Nvml(libraries) as nvml:
            print(json.dumps(shown(Discovery(Options(seats={seats})).look(nvml))["cards"]))
        """,
    )
    assert [card[6] for card in cards] == [index != 2 or not word for index in range(8)]
    assert word in cards[2][7]
    assert not word or "nvidia-smi -i 2 -c DEFAULT" in cards[2][7]


def test_a_card_of_which_no_processes_are_listed_is_not_taken_for_empty(on_machine: OnMachine) -> None:
    """In a guest of a vGPU NVML lists none: what programs take must not become what the driver takes, for good."""
    first, later = on_machine(
        "8xh100",
        """
        import pynvml
        from types import SimpleNamespace
        used = [40 << 30]
        def memory(handle, version=None):
            return SimpleNamespace(total=80 << 30, reserved=1 << 29, used=used[0])
        pynvml.nvmlDeviceGetMemoryInfo = memory
        with Machine() as there:
            for kind in ("Compute", "Graphics"):
                for version in (2, 3):
                    call = f"nvmlDeviceGet{kind}RunningProcesses_v{version}"
                    faults.arm(there, call, "NVML_ERROR_NOT_SUPPORTED", count=0)
        with Nvml(libraries) as nvml:
            discovery = Discovery(Options())
            first = shown(discovery.look(nvml))
            used[0] = 60 << 30
            print(json.dumps([look["cards"][0][4] for look in (first, shown(discovery.look(nvml)))]))
        """,
    )
    assert first == later == (80 << 30) - (1 << 29)


def test_versions_that_are_not_told_cost_no_card(on_machine: OnMachine) -> None:
    found = on_machine(
        "8xh100",
        """
        with Nvml(libraries) as nvml, Machine() as there:
            for call in ("nvmlSystemGetCudaDriverVersion", "nvmlSystemGetDriverVersion"):
                faults.arm(there, call, "NVML_ERROR_UNKNOWN", count=0)
            print(json.dumps(shown(Discovery(Options()).look(nvml))))
        """,
    )
    assert all(card[6] for card in found["cards"])
    assert (found["facts"]["cuda"], found["facts"]["driver"]) == ("", "")


def test_a_driver_without_the_newest_listing_of_processes_is_asked_by_the_one_before(on_machine: OnMachine) -> None:
    """Drivers before 510 have no third version; the binding then raises what is none of NVML's errors."""
    healthy, processes = on_machine(
        "8xh100",
        """
        with Nvml(libraries) as nvml, Machine() as there:
            for kind in ("Compute", "Graphics"):
                faults.arm(there, f"nvmlDeviceGet{kind}RunningProcesses_v3", "NVML_ERROR_FUNCTION_NOT_FOUND", count=0)
            cards = Discovery(Options()).look(nvml).cards
            print(json.dumps([[card.healthy for card in cards], nvml.use(cards[0].uuid).processes]))
        """,
    )
    assert healthy == [True] * 8
    assert processes == {}


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
