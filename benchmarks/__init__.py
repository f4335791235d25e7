"""How fast and how small nlm is, beside its peers: `make bench`; see `benchmarks.run`."""
