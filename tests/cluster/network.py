"""The pods' network: a bridge without masquerade on a subnet that this machine does not use.

Called by the node. Pods reach each other and the node; nothing beyond. What can go wrong: every candidate subnet has a
route already.
"""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path

CANDIDATES = [ipaddress.ip_network(f"10.{88 + step}.77.0/24") for step in range(40)]


def used() -> list[ipaddress.IPv4Network]:
    """Return the networks that have a route here, the default route left out."""
    networks = []
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        _, destination, _, _, _, _, _, mask, *_ = line.split()
        address, bits = (int.from_bytes(bytes.fromhex(word), "little") for word in (destination, mask))
        if bits:
            networks.append(ipaddress.IPv4Network((address, bits.bit_count())))
    return networks


def free_subnet() -> str:
    """Return a subnet for pods; OSError where none is free."""
    taken = used()
    for candidate in CANDIDATES:
        if not any(candidate.overlaps(network) for network in taken):
            return str(candidate)
    raise OSError(f"no subnet for pods: {CANDIDATES[0]} to {CANDIDATES[-1]} all have routes on this machine")


def write(directory: Path, *, name: str, bridge: str, leases: Path) -> Path:
    """Write the CNI configuration into `directory` and return its file."""
    ranges = [[{"subnet": free_subnet()}]]
    addresses = {"type": "host-local", "dataDir": str(leases), "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]}
    plugin = {"type": "bridge", "bridge": bridge, "isGateway": True, "ipam": addresses}
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "10-pods.conflist"
    path.write_text(json.dumps({"cniVersion": "1.0.0", "name": name, "plugins": [plugin]}))
    return path
