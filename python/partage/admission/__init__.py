"""What happens to pods when they are created: defaults filled in, wrong ones refused with the reason, grants guarded.

review.py: the API server's question and our answer; decide.py: from one to the other, a pure function; mutate.py and
validate.py: its two halves; server.py and program.py: `partage webhook`.
"""
