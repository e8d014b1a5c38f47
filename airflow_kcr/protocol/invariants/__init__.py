"""The invariants of a region, proved or refuted from its history alone (tests/annex/invariants.md)."""
