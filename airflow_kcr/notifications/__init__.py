"""Notifications: who is told of a region. One module each, as in every provider."""

from __future__ import annotations
