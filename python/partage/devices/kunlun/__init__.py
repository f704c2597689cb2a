"""Kunlunxin XPUs: what pods ask of them."""
