"""The page of the scheduler's settings, from the structures that hold them. Called by reference.py."""

from __future__ import annotations

from typing import Final

from reference_agent import table

from partage.scheduler.settings import API_VERSION, KIND, LAYOUT, POD_NAME

_ABOUT: Final = """
`partage scheduler` reads `/etc/partage/scheduler.yaml` (`--config FILE`), then variables, then flags, each over the one
before. Every key has a flag, and a variable: `PARTAGE_SCHEDULER_` and the flag's name in capitals with underscores. An
unknown key or flag is an error that names the nearest known one. What is changed counts from the next start on.
""".strip()
_OTHER: Final = f"""
`{POD_NAME}`, which the manifests set, names this replica where `instance` and `election.host` do not.
""".strip()


def page(note: str) -> str:
    """Return the page."""
    example = f"""```yaml
apiVersion: {API_VERSION}
kind: {KIND}
extender:
  port: 9440
leader: follow
election:
  lease: partage-system/partage-scheduler
books:
  reservationSeconds: 30
```"""
    return "\n\n".join(["# The scheduler's settings", note, _ABOUT, example, table(LAYOUT.keys()), _OTHER]) + "\n"
