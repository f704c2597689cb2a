"""We test these aspects of hand-overs: their directory is the user's alone; names are never used twice; room is counted
over the living only; what cannot be read is not counted as free."""

from __future__ import annotations

import os

import pytest

from partage.model import Device, LaunchError, PolicyError, ShareRefused
from partage.run import handover
from partage.shm import Policy, PolicyDevice, WatchedLedger

GIB = 1 << 30
CARD = Device("GPU-a", 0, "H100", 80 * GIB, 79 * GIB)
CARDS = {CARD.uuid: CARD}


def policy(memory: int, cores: int = 0) -> Policy:
    return Policy((PolicyDevice(uuid=CARD.uuid, memory=memory, physical=CARD.physical, cores=cores),))


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return handover.user_root()


@pytest.fixture
def promise(root):
    """Make hand-overs that are watched until the end of the test."""
    held = []

    def make(*amounts: int):
        with handover.registry(root):
            entry, file = handover.create(root, "a program", policy(*amounts), CARDS)
            held.append((file, WatchedLedger(entry.ledger_path)))
        return entry

    yield make
    for file, watched in held:
        watched.close()
        file.close()


def test_the_directory_is_the_users_alone(root):
    assert root.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_others_may_write_is_refused(root):
    root.chmod(0o777)
    with pytest.raises(LaunchError, match="mode 0777"):
        handover.user_root()


def test_a_link_planted_in_its_place_is_refused(tmp_path, monkeypatch):
    (tmp_path / "target").mkdir(mode=0o700)
    (tmp_path / "partage").symlink_to(tmp_path / "target")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(LaunchError):
        handover.user_root()


def test_names_are_safe_and_never_used_twice(promise):
    made = [promise(GIB).name for _ in range(5)]
    assert len(set(made)) == 5
    assert all(name.startswith("a-program-") for name in made)


def test_room_is_what_the_living_leave(root, promise):
    promise(40 * GIB)
    promise(30 * GIB)
    assert len(handover.living([root])) == 2
    with pytest.raises(ShareRefused, match="9 GiB of 79 GiB is free"):
        promise(10 * GIB)
    promise(9 * GIB)
    with pytest.raises(ShareRefused, match="0 B of 79 GiB is free"):
        promise(1)


def test_cores_are_counted_too(promise):
    promise(GIB, 700)
    with pytest.raises(ShareRefused, match="30 % is free"):
        promise(GIB, 301)
    promise(GIB, 300)


def test_the_dead_are_swept_and_not_counted(root, promise):
    with handover.registry(root):
        dead, file = handover.create(root, "dead", policy(70 * GIB), CARDS)
    file.close()
    living = promise(70 * GIB)
    assert not dead.path.exists()
    assert [entry.path for entry in handover.living([root])] == [living.path]


def test_a_neighbour_that_cannot_be_read_is_not_free_room(root, promise):
    entry = promise(GIB)
    os.truncate(entry.policy_path, 100)
    with pytest.raises(PolicyError), handover.registry(root):
        handover.check_room(policy(GIB), CARDS, root)
