"""The checks of `partage doctor`, one module a subject; `finding.py` holds the list of all kinds of findings."""
