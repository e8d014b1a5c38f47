"""One file for each revision; see the package above."""

from __future__ import annotations
