"""Tables for a terminal, and the report, a page that compares runs."""

from __future__ import annotations

from pocketbayes.reporting.build import report

__all__ = ["report"]
