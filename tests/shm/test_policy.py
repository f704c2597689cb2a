"""We test these aspects of the policy file: what is written is what is read; it is changed in place under its sequence
and checksum; two writers do not undo each other; a writer killed half-way is completed by the next; and no byte string
raises anything but PolicyError."""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage._abi import ffi, lib
from partage.model import PolicyError
from partage.shm import Policy, PolicyDevice, PolicyFile, read_policy
from partage.shm import policy as module

if TYPE_CHECKING:
    from collections.abc import Callable

GIB = 1 << 30
DEVICE = PolicyDevice(uuid="GPU-a", memory=24 * GIB, physical=80 * GIB, cores=300, ceiling=300, weight=300, context=0)
POLICY = Policy(devices=(DEVICE, replace(DEVICE, uuid="GPU-b", turn=1)), share_class="fixed", generation=7)

devices = st.builds(
    PolicyDevice,
    uuid=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=63),
    memory=st.integers(1, (1 << 63) - 1),
    physical=st.integers(0, (1 << 63) - 1),
    cores=st.integers(0, 1000),
    ceiling=st.integers(1, 1000),
    weight=st.integers(1, 10000),
    overhead=st.integers(0, (1 << 63) - 1),
    gated=st.booleans(),
    turn=st.integers(0, 15),
    context=st.none() | st.integers(0, (1 << 63) - 1),
)
policies = st.builds(
    Policy,
    devices=st.lists(devices, max_size=16).map(tuple),
    is_open=st.booleans(),
    share_class=st.sampled_from(module.CLASSES),
    priority=st.integers(0, 2),
    enforcement=st.integers(0, 31),
    flags=st.integers(0, 3),
    generation=st.integers(0, (1 << 64) - 1),
)


def image_of(policy: Policy) -> bytes:
    return bytes(ffi.buffer(module.encode(policy)))


@given(policies)
def test_what_is_written_is_what_is_read(policy):
    assert module.decode(image_of(policy)) == policy


@given(st.binary(max_size=module.SIZE + 8))
def test_no_byte_string_raises_anything_but_policy_error(data):
    with pytest.raises(PolicyError):
        module.decode(data)


@given(st.lists(st.tuples(st.integers(0, module.SIZE - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_mutated_file_is_refused_or_means_the_same(mutations):
    data = bytearray(image_of(POLICY))
    for position, value in mutations:
        data[position] = value
    try:
        assert module.decode(bytes(data)) == POLICY
    except PolicyError:
        assert bytes(data) != image_of(POLICY)


@given(st.lists(st.tuples(st.integers(24, module.SIZE - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_absurd_values_under_a_right_checksum_are_refused_too(mutations):
    data = bytearray(image_of(POLICY))
    for position, value in mutations:
        data[position] = value
    struct.pack_into("<I", data, 20, lib.ptg_crc32c(bytes(data[24:]), module.SIZE - 24))
    try:
        policy = module.decode(bytes(data))
    except PolicyError:
        return
    assert all(0 < device.memory < 1 << 63 and device.turn < 16 for device in policy.devices)


def test_checksum_is_crc32c():
    assert lib.ptg_crc32c(b"123456789", 9) == 0xE3069283


def test_update_is_seen_through_a_mapping_made_before(tmp_path):
    file = PolicyFile.create(tmp_path / "policy", POLICY)
    inode = (tmp_path / "policy").stat().st_ino
    before = (tmp_path / "policy").read_bytes()
    file.update(lambda policy: policy.changed("GPU-a", memory=12 * GIB))
    after = (tmp_path / "policy").read_bytes()
    assert read_policy(tmp_path / "policy") == POLICY.changed("GPU-a", memory=12 * GIB)
    assert (tmp_path / "policy").stat().st_ino == inode, "never renamed"
    assert struct.unpack_from("<I", after, 16)[0] == struct.unpack_from("<I", before, 16)[0] + 2
    file.close()


def test_unchanged_policy_is_not_written_again(tmp_path):
    file = PolicyFile.create(tmp_path / "policy", POLICY)
    before = (tmp_path / "policy").read_bytes()
    file.update(lambda policy: policy)
    assert (tmp_path / "policy").read_bytes() == before, "processes would re-read for nothing"
    file.close()


def test_a_writer_reads_what_others_wrote_and_decodes_it_once(tmp_path):
    file = PolicyFile.create(tmp_path / "policy", POLICY)
    assert file.read() is file.read()
    other = PolicyFile.open(tmp_path / "policy")
    other.update(lambda policy: policy.changed("GPU-a", memory=GIB))
    assert file.read().device("GPU-a").memory == GIB
    for each in (file, other):
        each.close()


def test_two_writers_keep_each_others_changes(tmp_path):
    path = tmp_path / "policy"
    watcher = PolicyFile.create(path, POLICY)
    resizer = PolicyFile.open(path)
    resizer.update(lambda policy: policy.changed("GPU-a", memory=12 * GIB))
    watcher.update(lambda policy: policy.changed("GPU-a", overhead=1 << 20))
    assert read_policy(path) == POLICY.changed("GPU-a", memory=12 * GIB, overhead=1 << 20)
    watcher.close()
    resizer.close()


def test_writer_killed_half_way_is_completed_by_the_next(tmp_path):
    path = tmp_path / "policy"
    file = PolicyFile.create(path, POLICY)
    with path.open("r+b") as raw:
        raw.seek(16)
        raw.write(struct.pack("<I", 3))  # odd: being written
        raw.seek(64 + 64)
        raw.write(b"\xff" * 8)
    with pytest.raises(PolicyError, match="sequence 3"):
        read_policy(path)
    stranger = PolicyFile.open(path)
    with pytest.raises(PolicyError):  # it has never seen a good copy, so it must not invent one
        stranger.update(lambda policy: policy)
    file.update(lambda policy: policy)
    assert read_policy(path) == POLICY
    assert struct.unpack_from("<I", path.read_bytes(), 16)[0] == 4
    file.close()
    stranger.close()


def test_shut_closes_and_keeps_the_shares(tmp_path):
    file = PolicyFile.create(tmp_path / "policy", POLICY)
    file.shut()
    assert read_policy(tmp_path / "policy") == replace(POLICY, is_open=False)
    file.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory": 0},
        {"memory": 1 << 63},
        {"cores": 1001},
        {"ceiling": 0},
        {"weight": 0},
        {"weight": 10001},
        {"uuid": ""},
        {"uuid": "x" * 64},
        {"uuid": "GPU\n"},
        {"turn": 16},
    ],
)
def test_values_out_of_bounds_are_never_written(tmp_path, wrong):
    file = PolicyFile.create(tmp_path / "policy", POLICY)
    with pytest.raises(PolicyError):
        file.update(lambda policy: policy.changed("GPU-a", **wrong))
    with pytest.raises(PolicyError, match="generation"):
        file.update(lambda policy: replace(policy, generation=1 << 64))
    assert read_policy(tmp_path / "policy") == POLICY
    file.close()


def test_missing_short_and_unreadable_files_name_the_file(tmp_path):
    (tmp_path / "short").write_bytes(b"")
    (tmp_path / "directory").mkdir()
    for name in ("missing", "short", "directory"):
        path = tmp_path / name
        with pytest.raises(PolicyError, match=str(path)):
            read_policy(path)
        with pytest.raises(PolicyError, match=str(path)):
            PolicyFile.open(path)


def test_a_reader_cannot_keep_its_writers_from_writing(tmp_path):
    file = PolicyFile.create(tmp_path / "policy", POLICY)
    reader = os.open(tmp_path / "policy", os.O_RDONLY)
    fcntl.fcntl(reader, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
    changing = threading.Thread(target=file.update, args=[lambda policy: replace(policy, generation=9)], daemon=True)
    changing.start()
    changing.join(200)
    assert not changing.is_alive()
    assert read_policy(tmp_path / "policy").generation == 9
    os.close(reader)
    file.close()


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path):
    PolicyFile.create(tmp_path / "policy", POLICY).close()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "policy")
    for path in (tmp_path / "fifo", tmp_path / "link", tmp_path):
        with pytest.raises(PolicyError, match=str(path)):
            read_policy(path)
        with pytest.raises(PolicyError, match=str(path)):
            PolicyFile.open(path)


@pytest.mark.parametrize("changes", [{"overhead": -1}, {"overhead": 1 << 63}, {"context": -1}])
def test_an_overhead_below_zero_is_never_written(changes):
    with pytest.raises(PolicyError, match="overhead"):
        module.encode(POLICY.changed(POLICY.devices[0].uuid, **changes))


def test_a_policy_that_is_cut_while_it_is_mapped_is_an_error(tmp_path):
    file = PolicyFile.create(tmp_path / "policy", POLICY.changed("GPU-a", gated=True))
    assert file.is_gated
    os.truncate(tmp_path / "policy", 0)
    assert not file.is_gated
    with pytest.raises(PolicyError, match="Bad address"):
        file.update(lambda policy: replace(policy, generation=9))
    file.close()


class Clock:
    """Two milliseconds pass at each look; something happens once somebody has slept so often."""

    def __init__(self, often: int, then: Callable[[], object]) -> None:
        self.slept, self._often, self._then, self._ns = 0, often, then, 0

    def monotonic_ns(self) -> int:
        self._ns += 2_000_000
        return self._ns

    def sleep(self, _: float) -> None:
        self.slept += 1
        if self.slept == self._often:
            self._then()


@pytest.mark.parametrize("often", [9, 1000], ids=["goes-on", "stands-still"])
def test_a_writer_that_is_not_run_for_a_while_is_waited_for(tmp_path, monkeypatch, often):
    """On a busy machine it stops half-way; to take its policy for broken would close a container that runs."""
    path = tmp_path / "share" / "policy"
    path.parent.mkdir()
    file = PolicyFile.create(path, POLICY)
    whole = path.read_bytes()
    path.write_bytes(whole[:16] + struct.pack("I", 7) + whole[20:])
    clock = Clock(often, lambda: path.write_bytes(whole))
    monkeypatch.setattr(module, "time", clock)
    with module.locked(file._lock, module._WRITERS):
        if often < 100:
            assert read_policy(path) == POLICY
        else:
            with pytest.raises(PolicyError, match="sequence 7"):
                read_policy(path)
    file.close()


def test_a_policy_that_nobody_writes_is_not_waited_for(tmp_path, monkeypatch):
    path = tmp_path / "share" / "policy"
    path.parent.mkdir()
    PolicyFile.create(path, POLICY).close()
    whole = path.read_bytes()
    path.write_bytes(whole[:16] + struct.pack("I", 7) + whole[20:])
    clock = Clock(1000, lambda: None)
    monkeypatch.setattr(module, "time", clock)
    with pytest.raises(PolicyError, match="sequence 7"):
        read_policy(path)
    assert clock.slept <= 2


def test_a_policy_that_cannot_be_made_leaves_no_descriptor(tmp_path):
    path = tmp_path / "hand-over" / "policy"
    path.parent.mkdir()
    with pytest.raises(PolicyError):
        PolicyFile.create(path, replace(POLICY, generation=-1))
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that this directory was read by
            found.append(str(descriptor.readlink()))
    assert not [name for name in found if name.startswith(str(tmp_path))]
