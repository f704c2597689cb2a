"""We test these aspects of launches on several devices by one call: programs that name the devices in opposite orders,
and neighbours on each, never wait for each other for ever; and each goes on at the pace of its share."""

from __future__ import annotations

import json
import sys
from pathlib import Path

LISTS = Path(__file__).with_name("lists.py")
WORKER = Path(__file__).with_name("worker.py")
LAUNCHES = 300


def test_opposite_orders_beside_neighbours_come_to_an_end(make_machine):
    machine = make_machine("zero2")
    half = ("--memory", "1Gi", "--cores", "30%", "--device", "0,1")
    pair = [machine.start(*half, program=(sys.executable, str(LISTS), *order)) for order in ("01", "10")]
    for device in "01":
        beside = ("--memory", "1Gi", "--cores", "30%", "--device", device)
        worker = machine.start(*beside, program=(sys.executable, str(WORKER), "plain", "1000000", "0"))
        worker.process.stdin.write('["go"]\n')
        worker.process.stdin.flush()
    for program in pair:
        program.process.stdin.write(json.dumps(["launch", LAUNCHES]) + "\n")
        program.process.stdin.flush()
    took = [json.loads(program.process.stdout.readline()) for program in pair]
    print(f"{LAUNCHES} launches on both devices at 30 % took {took} ms")
    assert all(program.process.poll() is None for program in pair)
