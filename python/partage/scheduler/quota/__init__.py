"""ResourceQuota for shares: what pods take of a namespace's quotas, whether there is room, and the quotas' status.

book.py counts, meters.py knows the keys, charge.py what a pod comes to, scope.py which pods a quota means, limits.py
reads the objects; feed.py keeps the book up to date and is what the scheduler asks, status.py writes what is used.
"""
