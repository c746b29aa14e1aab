"""Networks on the Hugging Face Hub or in a folder: the network's file, a description and a model card.

The file is that of `save`, without pickle, so nothing downloaded is executed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from pocketbayes import models
from pocketbayes.base.atomic import write_atomically
from pocketbayes.base.errors import UserError
from pocketbayes.base.run_folder import MODEL_FILE
from pocketbayes.data import Info
from pocketbayes.files.network_file import load, save
from pocketbayes.network import Net, members

FACTS = "config.json"
CARD = "README.md"
TASKS = {"segmentation": "image-segmentation", "regression": "tabular-regression"}


def save_pretrained(net: Net, folder: str | Path, *, figures: Mapping[str, float] | None = None) -> Path:
    """Write the network, its description and a model card to a folder, and return the folder.

    Args:
        net: A network or mixture.
        folder: The folder, created if needed; the three files in it are replaced.
        figures: Measures for the card, such as those of `evaluate`.
    """
    folder = Path(folder)
    checked = _checked(figures or {})
    size = save(net, folder / MODEL_FILE)
    facts = _facts(net, size)
    for name, text in ((FACTS, json.dumps(facts, indent=2)), (CARD, _card(facts, members(net)[0].info, checked))):
        write_atomically(folder / name, text)
    return folder


def push_to_hub(
    net: Net,
    repo_id: str,
    *,
    figures: Mapping[str, float] | None = None,
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
    message: str = "A network and its figures",
) -> str:
    """Upload the files of `save_pretrained` as one commit, and return its URL.

    Args:
        net: A network or mixture.
        repo_id: "user/name", created if needed.
        figures: Measures for the card, such as those of `evaluate`.
        private: Whether a new repository is private; None for the account's default.
        revision: The branch; None for main.
        token: The access token; None for that of `hf auth login`.
        message: The commit message.
    """
    api = _library().HfApi(token=_checked_token(token))
    with TemporaryDirectory() as folder:
        save_pretrained(net, folder, figures=figures)
        name = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        commit = api.upload_folder(repo_id=name, folder_path=folder, revision=revision, commit_message=message)
    return str(commit)


def from_pretrained(
    name: str | Path,
    model: nn.Module | None = None,
    *,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
) -> Net:
    """Load a network from a folder of `save_pretrained`, or from a repository on the Hub.

    Args:
        name: The folder, or "user/name".
        model: A model of the same architecture, if it has no name in `pb.models`, as in `load`.
        revision: A branch, tag or commit.
        token: The access token; None for that of `hf auth login`.
        cache_dir: The folder for downloads; None for the library's default.
        local_files_only: Use earlier downloads only, without network access.
    """
    if Path(name).is_dir():
        return load(Path(name) / MODEL_FILE, model)
    hub, token = _library(), _checked_token(token)
    try:
        path = hub.hf_hub_download(
            str(name),
            MODEL_FILE,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
        )
    except (hub.errors.HfHubHTTPError, hub.errors.HFValidationError, hub.errors.LocalEntryNotFoundError) as error:
        first = str(error).strip().splitlines()[0].replace(token or "\n", "***")
        raise UserError(f"no folder {str(name)!r}, and no network of that name on the Hub: {first}") from error
    return load(path, model)


def _checked_token(token: str | None) -> str | None:
    """Reject an invalid token here, since errors of the library would print it."""
    if token is not None and not (token and token.isascii() and token.isprintable() and " " not in token):
        raise UserError("the Hub's token contains a space, a line break or another invalid character: copy it again")
    return token


def _library() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise UserError("the Hugging Face Hub needs huggingface_hub: pip install 'pocketbayes[hub]'") from error
    return huggingface_hub


def _checked(figures: Mapping[str, float]) -> dict[str, float]:
    for name, value in figures.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise UserError(f"the figure {name!r} must be a finite number, not {value!r}")
    return dict(figures)


def _facts(net: Net, size: int) -> dict[str, Any]:
    """Return the description of the network."""
    networks = members(net)
    first, census = networks[0], net.census()
    spec = models.spec_of(first.model)
    return {
        "library_name": "pocketbayes",
        "model": type(first.model).__name__ if spec is None else spec.name,
        "model_args": None if spec is None else dict(spec.args),
        "networks": len(networks),
        "storage": first.posterior.name,
        "propagation": first.propagation,
        "weights": census.weights,
        "random_weights": census.random,
        "stored_values": census.values,
        "bytes": size,
        "point_network_bytes": 4 * (first.census().weights + first.census().points),
    }


def _card(facts: Mapping[str, Any], info: Info | None, figures: Mapping[str, float]) -> str:
    """Return the model card: metadata for the Hub, then description and measures."""
    import yaml

    data = "unknown data" if info is None else f"{info.name} ({info.task})"
    networks = f"{facts['networks']} networks, each a " if facts["networks"] > 1 else ""
    ratio = facts["bytes"] / facts["point_network_bytes"]
    lines = [
        "---",
        yaml.safe_dump(_head(facts, info, figures), sort_keys=False).rstrip(),
        "---",
        "",
        f"# {facts['model']} with a {facts['storage']} posterior",
        "",
        f"A Bayesian neural network ({networks}{facts['model']}, trained on {data}) that predicts with uncertainty.",
        "",
        "| | |",
        "|---|---:|",
        f"| weights | {facts['weights']:,} |",
        f"| of these random | {facts['random_weights']:,} |",
        f"| values stored | {facts['stored_values']:,} |",
        f"| file | {facts['bytes']:,} bytes, {ratio:.2f} x a float32 point network |",
        "",
        *_figures(figures),
        "## Use",
        "",
        "```python",
        "import pocketbayes as pb",
        "",
        'net = pb.from_pretrained("user/name")  # this repository, or a folder with its files',
        "answer = pb.predict(net, x)",
        "print(answer.mean, answer.epistemic, answer.aleatoric)",
        "```",
        "",
        f"`{MODEL_FILE}` holds no code: nothing in it is executed. Inputs are normalised as in training.",
        "",
    ]
    return "\n".join(lines)


def _figures(figures: Mapping[str, float]) -> list[str]:
    if not figures:
        return ["No figures were given.", ""]
    rows = [f"| {name} | {value:.6g} |" for name, value in figures.items()]
    return ["## Figures", "", "| measure | value |", "|---|---:|", *rows, ""]


def _head(facts: Mapping[str, Any], info: Info | None, figures: Mapping[str, float]) -> dict[str, Any]:
    """Return the Hub's metadata."""
    head: dict[str, Any] = {
        "library_name": "pocketbayes",
        "tags": ["bayesian-neural-network", "uncertainty", str(facts["storage"])],
    }
    if info is None:
        return head
    images = len(info.input_shape) == 3
    task = TASKS.get(info.task, "image-classification" if images else "tabular-classification")
    head |= {"pipeline_tag": task, "datasets": [info.name]}
    if figures:
        result = {
            "task": {"type": task},
            "dataset": {"name": info.name, "type": info.name},
            "metrics": [{"type": name, "value": value} for name, value in figures.items()],
        }
        head["model-index"] = [{"name": str(facts["model"]), "results": [result]}]
    return head
