"""Vendors' cards: a folder for each vendor, all behind the protocol of `backend.py`."""
