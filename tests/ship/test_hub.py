"""Networks in the Hub's folder layout, and uploads, without network access."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

import pocketbayes as pb
from cases import tiny_data, tiny_model
from pocketbayes.ship import hub


def digits_net(out_features: int = 10) -> pb.Network:
    torch.manual_seed(0)
    model = pb.models.build("mlp", in_features=64, hidden=[8], out_features=out_features)
    net = pb.bayesianize(model, pb.MeanFieldVI(std_init=0.05))
    net.info = pb.data.load("digits", "test").info
    return net


def head_of(card: str) -> dict[str, Any]:
    _, head, _ = card.split("---\n", 2)
    found = yaml.safe_load(head)
    assert isinstance(found, dict)
    return found


def test_hub_folder_gives_the_same_answers(tmp_path: Path) -> None:
    net = digits_net()
    folder = pb.save_pretrained(net, tmp_path / "net")
    assert sorted(file.name for file in folder.iterdir()) == ["README.md", "config.json", "model.pocket"]
    x = torch.randn(3, 64)
    again = pb.from_pretrained(folder)
    assert torch.equal(pb.predict(again, x, samples=3).mean, pb.predict(net, x, samples=3).mean)


def test_hub_takes_the_model_where_it_has_no_name(tmp_path: Path) -> None:
    net = pb.bayesianize(tiny_model(), pb.MeanFieldVI(std_init=0.05))
    pb.save_pretrained(net, tmp_path)
    again = pb.from_pretrained(tmp_path, tiny_model())
    x = tiny_data(4)[0]
    assert torch.equal(pb.predict(again, x, samples=2).mean, pb.predict(net, x, samples=2).mean)
    with pytest.raises(pb.UserError, match="model="):
        pb.from_pretrained(tmp_path)


def test_hub_card_states_the_figures(tmp_path: Path) -> None:
    net = digits_net()
    figures = {"accuracy": 0.9625, "nll": 0.1234567}
    pb.save_pretrained(net, tmp_path, figures=figures)
    card = (tmp_path / "README.md").read_text()
    size = (tmp_path / "model.pocket").stat().st_size
    census = net.census()
    for text in ("| accuracy | 0.9625 |", "| nll | 0.123457 |", f"{size:,} bytes", f"| weights | {census.weights:,} |",
                 f"| values stored | {census.values:,} |", "trained on digits", "mean-field"):  # fmt: skip
        assert text in card
    head = head_of(card)
    assert head["library_name"] == "pocketbayes"
    assert head["datasets"] == ["digits"]
    (result,) = head["model-index"][0]["results"]
    assert {metric["type"]: metric["value"] for metric in result["metrics"]} == figures
    facts = json.loads((tmp_path / "config.json").read_text())
    assert facts["bytes"] == size
    assert facts["point_network_bytes"] == 4 * (64 * 8 + 8 + 8 * 10 + 10)


def test_hub_card_of_a_mixture_without_figures_claims_none(tmp_path: Path) -> None:
    networks = [pb.bayesianize(tiny_model(), pb.MeanFieldVI(std_init=0.05)) for _ in range(2)]
    pb.save_pretrained(pb.Mixture(networks), tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "2 networks" in card
    assert "No figures were given." in card
    assert "model-index" not in head_of(card)


def test_hub_card_head_is_what_the_hub_reads(tmp_path: Path) -> None:
    library = pytest.importorskip("huggingface_hub")
    pb.save_pretrained(digits_net(), tmp_path, figures={"accuracy": 0.5})
    data = library.ModelCard.load(tmp_path / "README.md").data
    assert data.library_name == "pocketbayes"
    assert [(result.metric_type, result.metric_value) for result in data.eval_results] == [("accuracy", 0.5)]


@pytest.mark.parametrize("value", [float("nan"), "high", True, None])
def test_hub_figures_are_finite_numbers(value: Any, tmp_path: Path) -> None:
    with pytest.raises(pb.UserError, match="'accuracy' must be a finite number"):
        pb.save_pretrained(digits_net(), tmp_path / "net", figures={"accuracy": value})
    assert not (tmp_path / "net").exists()


class FolderHub:
    """A hub whose repositories are folders."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.token: str | None = None
        self.errors = pytest.importorskip("huggingface_hub").errors
        self.private: bool | None = None

    def HfApi(self, token: str | None = None) -> FolderHub:  # noqa: N802
        self.token = token
        return self

    def create_repo(self, repo_id: str, *, private: bool | None, exist_ok: bool) -> Any:
        assert exist_ok
        self.private = private
        return SimpleNamespace(repo_id=repo_id)

    def upload_folder(self, *, repo_id: str, folder_path: str, revision: str | None, commit_message: str) -> str:
        shutil.copytree(folder_path, self.root / repo_id / (revision or "main"))
        return f"https://hub/{repo_id}/commit/1"

    def hf_hub_download(self, repo_id: str, filename: str, *, revision: str | None, **_: Any) -> str:
        path = self.root / repo_id / (revision or "main") / filename
        if not path.exists():
            raise self.errors.LocalEntryNotFoundError(f"no {repo_id}\nand much more")
        return str(path)


def test_hub_push_and_load_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = FolderHub(tmp_path)
    monkeypatch.setattr(hub, "_library", lambda: remote)
    net = digits_net()
    address = pb.push_to_hub(net, "me/digits", figures={"accuracy": 0.9}, private=True, revision="v1", token="t")
    assert address == "https://hub/me/digits/commit/1"
    assert (remote.token, remote.private) == ("t", True)
    assert "| accuracy | 0.9 |" in (tmp_path / "me" / "digits" / "v1" / "README.md").read_text()
    again = pb.from_pretrained("me/digits", revision="v1")
    x = torch.randn(2, 64)
    assert torch.equal(pb.predict(again, x, samples=2).mean, pb.predict(net, x, samples=2).mean)
    with pytest.raises(
        pb.UserError, match=r"no folder 'me/other', and no network of that name on the Hub: no me/other$"
    ):
        pb.from_pretrained("me/other")


def test_hub_names_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(pb.UserError, match=r"model\.pocket"):
        pb.from_pretrained(tmp_path)


@pytest.mark.parametrize("token", ["hf_secret\n", "hf_secret x", "hf_s\N{LATIN SMALL LETTER E WITH ACUTE}cret", ""])
def test_hub_refuses_an_invalid_token_without_printing_it(token: str) -> None:
    for ask in (
        lambda: pb.from_pretrained("me/x", token=token),
        lambda: pb.push_to_hub(digits_net(), "me/x", token=token),
    ):
        with pytest.raises(pb.UserError, match="copy it again") as caught:
            ask()
        assert "hf_s" not in str(caught.value)


def test_hub_errors_do_not_repeat_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = FolderHub(tmp_path)
    monkeypatch.setattr(hub, "_library", lambda: remote)
    with pytest.raises(pb.UserError, match=r"no me/\*\*\*$"):
        pb.from_pretrained("me/hf_secret", token="hf_secret")
