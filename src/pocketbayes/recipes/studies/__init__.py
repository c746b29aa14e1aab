"""Studies: tables of many methods side by side, each a YAML file here, trained and measured by `reproduce`."""

from __future__ import annotations

from pocketbayes.recipes.studies.run import reproduce
from pocketbayes.recipes.studies.study import Row, Study, names, read

__all__ = ["Row", "Study", "names", "read", "reproduce"]
