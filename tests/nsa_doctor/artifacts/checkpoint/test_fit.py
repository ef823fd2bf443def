"""Whether a checkpoint is one of the subject: what it holds under the subject's names."""

import json

import pytest
import torch

from nsa import NSAttention, Transformer, load_config
from nsa_doctor.artifacts.checkpoint.fit import misfits
from nsa_doctor.artifacts.checkpoint.record import Reading
from nsa_doctor.cli.main import serve
from tests.nsa_doctor.conftest import HERE

SMALL = HERE / "small.yaml"
PARAMETERS = {"gate.fc2.weight": (3, 8), "out.weight": (16, 16)}


def misfits_of(shapes):
    return list(misfits(Reading(path="a.pt", shapes=shapes), PARAMETERS, "nsa (mine)"))


@pytest.mark.parametrize(
    "shapes",
    [
        PARAMETERS,
        {f"model.layers.{layer}.{name}": shape for layer in range(3) for name, shape in PARAMETERS.items()},
        {**PARAMETERS, "embedding.weight": (99, 16)},
    ],
    ids=["the subject itself", "a model of several layers of it", "a model with more in it"],
)
def test_a_checkpoint_that_holds_the_subject_fits(shapes):
    assert misfits_of(shapes) == []


def test_another_shape_is_another_model_and_both_are_named():
    (sentence,) = misfits_of({**PARAMETERS, "gate.fc2.weight": (3, 4)})
    assert sentence == (
        "a.pt is a checkpoint of another model than nsa (mine): gate.fc2.weight is [3, 4] and not [3, 8]"
    )


def test_one_layer_of_another_shape_is_another_model():
    (sentence,) = misfits_of({**PARAMETERS, "layers.1.out.weight": (8, 8)})
    assert "out.weight is" in sentence


def test_what_is_not_there_is_reported_and_counted():
    (sentence,) = misfits_of({"out.weight": (16, 16), "fat_gate.fc2.weightier": (3, 8)})
    assert "gate.fc2.weight is not there" in sentence


def test_part_of_a_name_is_not_the_name():
    assert misfits_of({"out.weight": (16, 16), "my_gate.fc2.weight": (3, 8)}) != []


@pytest.mark.parametrize(
    ("config", "code"),
    [
        pytest.param(str(SMALL), 0, id="of the subject", marks=pytest.mark.full),
        pytest.param("train_showcase", 3, id="of another model"),
    ],
)
def test_a_verdict_is_bound_to_the_subjects_own_checkpoint(tmp_path, capsys, config, code):
    torch.manual_seed(0)
    model = Transformer(load_config(config).model)
    torch.save({"model": model.state_dict()}, tmp_path / "checkpoint.pt")
    gate = tmp_path / "gate.yaml"
    gate.write_text("{profile: smoke, require: [{codes: [FWD102, CKP101, CKP102, CKP103, GAT201], because: a test}]}")
    words = ["--gate", str(gate), "--config", str(SMALL), "--checkpoint", str(tmp_path / "checkpoint.pt")]
    assert serve(["go-no-go", *words, "--output", str(tmp_path), "--quiet", "--jobs", "1"]) == code
    report = json.loads((tmp_path / "report.json").read_text())
    assert {result["code"]: result["verdict"] for result in report["results"]}["CKP101"] == "PASS"
    assert len(report["gates"]) == load_config(config).model.n_layers
    assert ("another model than" in report["verdict"]["why"][0]) is (code == 3)


def test_the_subjects_own_layer_fits_itself(tmp_path):
    layer = NSAttention(load_config(str(SMALL)).model)
    shapes = {name: tuple(each.shape) for name, each in layer.named_parameters()}
    assert list(misfits(Reading(path="a", shapes=shapes), shapes, "x")) == []
