"""The command line: `partage run | top | resize | demo | doctor | sim | completion`."""

from partage.cli.app import main

__all__ = ["main"]
