"""The files of an evaluation: a JSON document, with the values per image beside it in a safetensors file.

Both are written after each finished part, with the settings of the evaluation, so that an interrupted evaluation
resumes where it stopped and never mixes parts of two evaluations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from pocketbayes.base import atomic
from pocketbayes.base.digests import new_digest, take_in
from pocketbayes.base.errors import UserError, refusing
from pocketbayes.base.plain import finite
from pocketbayes.data.batches import Source, size_of
from pocketbayes.network import Net, members

FORMAT = 1
VALUES_SUFFIX = ".safetensors"
SETTINGS = "settings"
COSTLY = ("ood", "shift")
"""Parts that are only discarded on request when settings change."""
_ROWS_IN_PRINT = 16


class Store:
    """The document of one evaluation."""

    def __init__(
        self, path: Path | None, settings: Mapping[str, Any], head: Mapping[str, Any], overwrite: bool = False
    ) -> None:
        """Resume the evaluation in a file, if it has the same settings."""
        self.path = path
        self.tag = json.dumps(settings, sort_keys=True)
        self.values: dict[str, Tensor] = {}
        self._written: dict[str, Tensor] = self.values
        kept: dict[str, Any] = {}
        if path is not None and path.is_file() and not overwrite:
            kept = read_document(path)
            if kept.get(SETTINGS) != settings:
                _refuse_to_lose(path, kept, settings)
                kept = {}
            else:
                self.values = self._written = read_values(path, self.tag)
        self.document = {**kept, "format": FORMAT, **head, SETTINGS: dict(settings)}

    def keep(self) -> None:
        """Write both files, the values first, since a part counts as finished once it is in the document."""
        self.document = finite(self.document)
        if self.path is None:
            return
        from safetensors.torch import save

        if self.values is not self._written:
            data = save({name: value.contiguous() for name, value in self.values.items()}, {SETTINGS: self.tag})
            atomic.write_atomically(values_file(self.path), data)
            self._written = self.values
        atomic.write_atomically(self.path, json.dumps(self.document, allow_nan=False, indent=1) + "\n")


def values_file(path: Path) -> Path:
    """Return the file of the values per image."""
    return path.with_suffix(VALUES_SUFFIX)


def read_document(path: str | Path) -> dict[str, Any]:
    """Read the document of an evaluation."""
    path = Path(path)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a readable evaluation ({error}); remove it to evaluate again") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UserError(f"{path} is not an evaluation of format {FORMAT}; remove it to evaluate again")
    return document


def read_values(path: str | Path, tag: str | None = None) -> dict[str, Tensor]:
    """Read the values per image beside a document; empty if there are none or they belong to other settings."""
    from safetensors import SafetensorError, safe_open

    file = values_file(Path(path))
    try:
        with safe_open(file, framework="pt") as values:
            if tag is not None and (values.metadata() or {}).get(SETTINGS) != tag:
                return {}
            return {name: values.get_tensor(name) for name in list(values.keys())}
    except (OSError, SafetensorError):
        return {}


def network_print(net: Net) -> str:
    """Return a fingerprint of everything that a prediction depends on."""
    digest = new_digest()
    for network in members(net):
        digest.update(f"{type(network.posterior).__name__} {network.propagation}".encode())
        for name, value in network.state_dict().items():
            digest.update(name.encode())
            if isinstance(value, Tensor):
                take_in(digest, value)
    return digest.hexdigest()


def data_print(source: Source) -> str:
    """Return a fingerprint of a data set from its size and some evenly spaced rows."""
    data: Any = source.dataset if isinstance(source, DataLoader) else source
    count = size_of(source)
    digest = new_digest(str(count).encode())
    for index in torch.linspace(0, count - 1, min(count, _ROWS_IN_PRINT)).long().tolist():
        for value in data[index]:
            with refusing(f"row {index} of the data", "numbers", ": give tensors or arrays"):
                tensor = torch.as_tensor(value)
            take_in(digest, tensor)
    return digest.hexdigest()


def _refuse_to_lose(path: Path, kept: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    if not any(part in kept for part in COSTLY):
        return
    before = kept.get(SETTINGS) or {}
    changed = next(name for name in {**before, **settings} if before.get(name) != settings.get(name))
    was = "" if changed in ("network", "data") else f" ({before.get(changed)!r}, now {settings.get(changed)!r})"
    raise UserError(
        f"{path} holds an evaluation with another {changed}{was}: choose another file (out=, --out), or discard it "
        "(overwrite=True, --overwrite)"
    )
