"""Models with several inputs, keyword arguments and named outputs, such as Hugging Face classifiers."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pocketbayes as pb
from pocketbayes.data.model_inputs import Inputs, as_input, split_batch
from pocketbayes.posteriors.model_call import answer_of

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


class Output(NamedTuple):
    """A small version of the output of transformers' classifiers."""

    loss: Tensor | None
    logits: Tensor


class Tokens(nn.Module):
    """A classifier of token sequences with keyword arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Output:
        weight = attention_mask[..., None].float()
        logits = self.head((self.embedding(input_ids) * weight).sum(1) / weight.sum(1))
        return Output(None if labels is None else nn.functional.cross_entropy(logits, labels), logits)


def rows(count: int = 48) -> list[dict[str, Any]]:
    """Return sequences with or without token 3, and a row number that no model accepts."""
    made = torch.Generator().manual_seed(0)
    ids = torch.randint(4, 20, (count, 6), generator=made)
    labels = torch.arange(count) % 2
    ids[labels == 1, :3] = 3
    mask = torch.ones_like(ids)
    mask[:, 5:] = 0
    return [
        {"input_ids": ids[i], "attention_mask": mask[i], "labels": labels[i], "idx": i, "text": "a"}
        for i in range(count)
    ]


def batch(count: int = 48) -> dict[str, Any]:
    """Return all rows as one batch."""
    return next(iter(DataLoader(rows(count), batch_size=count)))


@pytest.mark.parametrize("given", ["dataset", "loader", "pair", "tuples"])
def test_fit_takes_named_inputs(given: str, learning_seed: int) -> None:
    torch.manual_seed(learning_seed)
    whole = batch()
    named = {name: whole[name] for name in ("input_ids", "attention_mask")}
    data = {
        "dataset": rows(),
        "loader": DataLoader(rows(), batch_size=16),
        "pair": (named, whole["labels"]),
        "tuples": DataLoader(TensorDataset(*named.values(), whole["labels"]), batch_size=16),
    }[given]
    settings = {"epochs": 12, "batch_size": 16, "lr": 0.05, "seed": learning_seed}
    net = pb.fit(pb.MeanFieldVI(), Tokens(), data, val=data, progress=False, **settings)
    assert pb.evaluate(net, data, samples=4)["accuracy"] > 0.9
    assert [name for name, _, _ in net.info.inputs] == (
        ["0", "1"] if given == "tuples" else [*named, *["idx"] * (given in ("dataset", "loader"))]
    )


@pytest.mark.parametrize("propagation", ["mean", "sample", "local", "flipout", "moments", "linear"])
def test_predict_takes_a_mapping(propagation: str) -> None:
    net = pb.bayesianize(Tokens(), "bbb")
    whole = batch(8)
    answer = pb.predict(net, whole, 3, propagation, batch_size=5)
    one = pb.predict(net, {name: value[:1] for name, value in whole.items() if name != "text"}, 3, propagation)
    assert answer.probs.shape == (8, 2)
    if propagation in ("mean", "sample", "linear"):
        torch.testing.assert_close(one.probs, answer.probs[:1], rtol=1e-4, atol=1e-5)


def test_network_called_by_keywords_returns_the_models_output() -> None:
    whole = batch(4)
    net = pb.bayesianize(Tokens(), "bbb")
    output = net(input_ids=whole["input_ids"], attention_mask=whole["attention_mask"], labels=whole["labels"])
    assert output.loss.ndim == 0
    assert isinstance(net(as_input(whole)), Tensor)


def test_save_keeps_the_answers_to_named_inputs(tmp_path: Path) -> None:
    whole = batch(8)
    named = {name: whole[name] for name in ("input_ids", "attention_mask")}
    net = pb.fit("bbb", Tokens(), (named, whole["labels"]), epochs=1, progress=False)
    pb.save(net, tmp_path / "net.pocket")
    again = pb.load(tmp_path / "net.pocket", Tokens())
    assert again.info == net.info
    torch.testing.assert_close(pb.predict(again, named, 2).probs, pb.predict(net, named, 2).probs)


@pytest.mark.parametrize("mode", ["mean", "sample"])
def test_export_takes_named_inputs(mode: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    whole = batch(8)
    named = {name: whole[name] for name in ("input_ids", "attention_mask")}
    net = pb.fit("bbb", Tokens(), (named, whole["labels"]), epochs=1, progress=False)
    pb.export_onnx(net, tmp_path / "net.onnx", mode)  # type: ignore[arg-type]
    session = runtime.InferenceSession(tmp_path / "net.onnx")
    shorter = {name: value[:3, :4] for name, value in named.items()}
    (probs,) = session.run(["probs"], {name: value.numpy() for name, value in shorter.items()})
    assert {"input_ids", "attention_mask"} <= {each.name for each in session.get_inputs()}
    expected = pb.predict(net, shorter, 30, mode).probs
    torch.testing.assert_close(torch.from_numpy(probs), expected, rtol=0, atol=1e-5 if mode == "mean" else 0.1)


def test_split_batch_names_missing_inputs() -> None:
    with pytest.raises(pb.UserError, match="name them 'labels'"):
        split_batch({"input_ids": torch.zeros(2)})
    with pytest.raises(pb.UserError, match="the same length"):
        as_input({"a": torch.zeros(2), "b": torch.zeros(3)})
    with pytest.raises(pb.UserError, match="forward takes input_ids"):
        pb.predict(pb.bayesianize(Tokens(), "bbb"), {"tokens": torch.zeros(2, 3).long()})


def test_inputs_behave_like_one_tensor() -> None:
    inputs = Inputs((torch.zeros(5, 2, dtype=torch.float64),), {"ids": torch.arange(5)})
    moved = inputs.to(torch.float32)
    assert [len(part) for part in inputs.split(2)] == [2, 2, 1]
    assert [len(part) for part in inputs.chunk(2)] == [3, 2]
    assert (moved.args[0].dtype, moved.kwargs["ids"].dtype) == (torch.float32, torch.int64)


def test_answer_of_finds_logits() -> None:
    logits = torch.zeros(2)
    for output in (logits, Output(None, logits), {"out": logits, "aux": 1}, (logits,), {"only": logits}):
        assert answer_of(output) is logits
    assert isinstance(answer_of((logits, logits)), tuple)


def test_fit_takes_hugging_face_classifiers(learning_seed: int) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(learning_seed)
    settings = {"lr": 0.02, "seed": learning_seed, "progress": False}
    bert = transformers.BertForSequenceClassification(
        transformers.BertConfig(vocab_size=20, max_position_embeddings=8, num_labels=2, **SIZES)
    )
    net = pb.fit(pb.MeanFieldVI(), bert, DataLoader(rows(), batch_size=16), epochs=8, **settings)
    assert pb.evaluate(net, DataLoader(rows(), batch_size=16), samples=4)["accuracy"] > 0.8
    vit = transformers.ViTForImageClassification(
        transformers.ViTConfig(image_size=8, patch_size=4, num_channels=1, num_labels=3, **SIZES)
    )
    pictures = [{"pixel_values": torch.rand(1, 8, 8), "labels": i % 3} for i in range(6)]
    seen = pb.fit("bbb", vit, pictures, epochs=1, batch_size=3, progress=False)
    answer = pb.predict(seen, torch.rand(4, 1, 8, 8), 2)  # one tensor, as for images
    assert answer.probs.shape == (4, 3)


def test_compress_takes_named_inputs(tmp_path: Path) -> None:
    net = pb.fit("map", Tokens(), rows(), epochs=4, lr=0.05, progress=False)
    small = pb.compress(net, DataLoader(rows(), batch_size=16), rows(), max_nll_loss=1.0, steps=2, progress=False)
    assert small.save(tmp_path / "tokens.pocket") == small.chosen.bytes <= small.before.bytes
    assert pb.load(tmp_path / "tokens.pocket", Tokens()) is not None


def test_bayesianize_takes_named_inputs() -> None:
    net = pb.bayesianize(Tokens(), "bbb", data=DataLoader(rows(), batch_size=16))
    assert pb.predict(net, batch(), samples=2).probs.shape == (48, 2)
