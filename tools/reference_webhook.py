"""The page of the webhook's settings, from the structures that hold them. Called by reference.py."""

from __future__ import annotations

from typing import Final

from reference_agent import table

from partage.admission.settings import API_VERSION, KIND, LAYOUT

_ABOUT: Final = """
`partage webhook` reads `/etc/partage/webhook.yaml` (`--config FILE`), then variables, then flags, each over the one
before. Every key has a flag, and a variable: `PARTAGE_WEBHOOK_` and the flag's name in capitals with underscores. Lists
are written with commas there. An unknown key or flag is an error that names the nearest known one. SIGHUP reads all of
it again: keys marked *live* are in force at once, for the others the log says that they wait for the next start. What
stands below `ask` must be the same for the [scheduler](scheduler.md).
""".strip()


def page(note: str) -> str:
    """Return the page."""
    example = f"""```yaml
apiVersion: {API_VERSION}
kind: {KIND}
priorityClasses: true
runtimeClass: nvidia
ask:
  defaultMemory: 8192
```"""
    return "\n\n".join(["# The webhook's settings", note, _ABOUT, example, table(LAYOUT.keys())]) + "\n"
