"""Trials on disk, so that an interrupted sweep resumes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pocketbayes.base.atomic import write_atomically
from pocketbayes.base.digests import new_digest
from pocketbayes.base.plain import finite
from pocketbayes.files import pocket
from pocketbayes.files.network_file import Packed
from pocketbayes.ship.compression.trials import Trial

NAME_BYTES = 12
"""Bytes of the digest that names a trial's files."""


class Store:
    """A folder of measured files, or none.

    A trial is identified by its coding, the network, and the settings of the measurement.
    """

    def __init__(self, folder: str | Path | None, origin: Packed, settings: Mapping[str, Any]) -> None:
        """Take the folder, the network as it was, and the settings of the sweep."""
        self.folder = None if folder is None else Path(folder)
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
        digest = new_digest(json.dumps(settings, sort_keys=True).encode())
        for name, part in origin.parts.items():
            digest.update(name.encode() + part)
        self.origin = digest.hexdigest()

    def path(self, how: Mapping[str, Any], suffix: str) -> Path | None:
        """Return the path of a trial's file."""
        if self.folder is None:
            return None
        text = self.origin + json.dumps(how, sort_keys=True)
        return self.folder / (new_digest(text.encode(), NAME_BYTES).hexdigest() + suffix)

    def find(self, how: Mapping[str, Any]) -> Trial | None:
        """Return an earlier trial, if any."""
        record, file = self.path(how, ".json"), self.path(how, ".pocket")
        if record is None or file is None or not (record.is_file() and file.is_file()):
            return None
        known = json.loads(record.read_text())
        text, parts = pocket.read(file)
        text = {key: value for key, value in text.items() if key != "format"}
        packed = Packed(text, {name: bytes(part) for name, part in parts.items()})
        nll = float("inf") if known["nll"] is None else known["nll"]
        figures = known["bytes"], known["bits"], nll, known["accuracy"]
        return Trial(known["how"], *figures, packed, known.get("disagreement"))

    def keep(self, trial: Trial) -> None:
        """Write a trial; its record comes last."""
        record, file = self.path(trial.how, ".json"), self.path(trial.how, ".pocket")
        if record is None or file is None or trial.packed is None:
            return
        trial.packed.write(file)
        write_atomically(record, json.dumps(finite(trial.to_json())))
