"""The node agent: one process per node that hands shares of its cards to containers and keeps them to it."""
