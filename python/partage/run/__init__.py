"""A program with a share on this machine, without Kubernetes: hand-over, launch, watch.

`runner.run` is `partage run`; `handover` is what `partage top` and `resize` look at.
"""
