"""Enflame GCUs: what pods ask of them."""
