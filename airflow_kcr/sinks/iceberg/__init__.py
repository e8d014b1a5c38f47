"""Sinks that write into Iceberg tables: a file sink whose checkpoints a table shows."""
