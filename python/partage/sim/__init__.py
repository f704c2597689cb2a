"""The simulated machine from Python: profiles, the machine file, faults (`partage sim`, `partage run --sim`, tests)."""
