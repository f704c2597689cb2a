"""Who gets which cards: the books, quota, the extender of kube-scheduler, preemption, events."""
