"""What a task waits with when it gives up its slot: one family of triggers, and the poller that they share."""

from __future__ import annotations
