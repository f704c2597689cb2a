"""MetaX GPUs: what pods ask of them."""
