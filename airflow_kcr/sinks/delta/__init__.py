"""Delta tables, committed to with delta-rs."""
