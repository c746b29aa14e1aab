"""Studies: tables that compare methods, defined in YAML files and run by `reproduce`."""

from __future__ import annotations

from pocketbayes.recipes.studies.run import reproduce
from pocketbayes.recipes.studies.study import Row, Study, names, read

__all__ = ["Row", "Study", "names", "read", "reproduce"]
