"""NVIDIA cards: all that the node agent needs of them, behind the protocol of `devices/backend.py`."""
