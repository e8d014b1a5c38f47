"""The region store: `regions` is what others use, `postgres` what it is made of, `migrations` the schema."""

from __future__ import annotations
