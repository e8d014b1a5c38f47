"""The pure protocol: values, member and region state machines, claims, merge, seek maps and checkpoint rules."""

from __future__ import annotations
