"""Weights go from our checkpoints to a folder of transformers and back without a bit changed."""

import dataclasses
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from nsa import ConfigError, ModelConfig, Transformer
from nsa.train.checkpoint import Snapshot, read_checkpoint, write_checkpoint
from nsa.train.weights import read_weights, write_weights

transformers = pytest.importorskip("transformers", reason="transformers is not installed: it is the extra hf")
hf = import_module("nsa.hf")


VARIANTS: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tie_embeddings": False},
    "mlp": {"phi": "mlp"},
    "conv-shared": {"phi": "conv", "shared_kv": True, "gate": "sigmoid", "mlp_dim": None, "rope_theta": 5e5},
}


def assert_same(got: Any, expected: Any) -> None:
    assert got.keys() == expected.keys()
    for name in expected:
        assert got[name].dtype == expected[name].dtype, name
        assert torch.equal(got[name], expected[name]), name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_a_checkpoint_survives_the_way_there_and_back(
    make_transformer: Callable[..., Transformer], changes: dict[str, Any], dtype: torch.dtype, tmp_path: Path
) -> None:
    transformer = make_transformer(**changes).to(dtype)
    state = {"config": {"model": transformer.config.model_dump(mode="json")}}
    path = write_checkpoint(tmp_path / "ours", Snapshot(step=7, model=transformer.state_dict(), state=state), 1)
    hf.from_checkpoint(path).save_pretrained(tmp_path / "theirs")
    hf.register()
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "theirs")
    assert type(model) is hf.NSAForCausalLM
    assert model.config.model_config() == transformer.config
    assert_same(hf.transformer_tensors(model), transformer.state_dict())
    again = Snapshot(step=7, model=hf.transformer_tensors(model), state=state)
    back = write_checkpoint(tmp_path / "back", again, 1)
    assert_same(read_checkpoint(back).model, read_checkpoint(path).model)
    assert (back / "model.safetensors").read_bytes() == (path / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_a_file_of_weights_survives_the_way_there_and_back(
    make_transformer: Callable[..., Transformer], name: str, tmp_path: Path
) -> None:
    transformer = make_transformer(tie_embeddings=False)
    write_weights(tmp_path, transformer.state_dict())
    hf.from_checkpoint(tmp_path / name, transformer.config).save_pretrained(tmp_path / "theirs")
    model = hf.NSAForCausalLM.from_pretrained(tmp_path / "theirs", dtype="auto")
    assert_same(hf.transformer_tensors(model), transformer.state_dict())
    write_weights(tmp_path, hf.transformer_tensors(model))
    assert_same(read_weights(tmp_path / name), transformer.state_dict())


def test_logits_survive_the_way_there_and_back(
    make_transformer: Callable[..., Transformer], ids: torch.Tensor, tmp_path: Path
) -> None:
    transformer = make_transformer()
    hf.from_transformer(transformer).save_pretrained(tmp_path)
    model = hf.NSAForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(model(ids).logits, transformer(ids))
    assert torch.equal(hf.to_transformer(model)(ids), transformer(ids))


def test_a_converted_model_shares_no_memory(make_transformer: Callable[..., Transformer]) -> None:
    transformer = make_transformer()
    model = hf.from_transformer(transformer)
    back = hf.to_transformer(model)
    places = [{each.data_ptr() for each in module.parameters()} for module in (transformer, model, back)]
    assert not places[0] & places[1]
    assert not places[1] & places[2]
    assert model.lm_head.weight is model.get_input_embeddings().weight


def test_the_configuration_survives_the_way_there_and_back(tmp_path: Path) -> None:
    config = hf.NSAConfig(
        hidden_size=48, num_attention_heads=4, head_dim=12, l=4, d=2, l_sel=8, n_sel=3, w=9, pad_token_id=0
    )
    config.save_pretrained(tmp_path)
    hf.register()
    read = transformers.AutoConfig.from_pretrained(tmp_path)
    assert type(read) is hf.NSAConfig
    assert read.to_diff_dict() == config.to_diff_dict()
    assert hf.NSAConfig.from_model_config(config.model_config(), pad_token_id=0).model_config() == config.model_config()


def test_no_field_of_the_model_is_left_out() -> None:
    config = hf.NSAConfig(hidden_size=48, num_attention_heads=4, head_dim=12, v_head_dim=10, n_sel=5, phi="conv")
    fields = {field.name for field in dataclasses.fields(config)}
    values = config.model_config().model_dump()
    assert set(hf.NSAConfig.from_model_config(config.model_config()).model_config().model_dump()) == set(values)
    others = {name for name in values if name not in fields}
    assert others == {
        "dim",
        "n_heads",
        "n_kv_groups",
        "d_k",
        "d_v",
        "n_layers",
        "mlp_dim",
        "tie_embeddings",
        "norm_eps",
    }


def test_the_base_model_is_built_by_its_type() -> None:
    hf.register()
    hf.register()  # again is no error
    config = transformers.AutoConfig.for_model(
        "nsa", hidden_size=24, num_hidden_layers=1, num_attention_heads=2, head_dim=4
    )
    assert type(transformers.AutoModel.from_config(config)) is hf.NSAModel


def test_what_a_checkpoint_lacks_is_drawn_as_its_class_draws_it(
    make_transformer: Callable[..., Transformer], tmp_path: Path
) -> None:
    model = hf.from_transformer(make_transformer(phi="conv").float())
    kept = {name: value for name, value in model.state_dict().items() if "blocks.1" not in name and "head" not in name}
    model.save_pretrained(tmp_path, state_dict=kept)
    read = hf.NSAForCausalLM.from_pretrained(tmp_path)
    for name, value in read.state_dict().items():
        if name in kept:
            assert torch.equal(value, kept[name]), name
    block = read.model.transformer.blocks[1]
    assert torch.equal(block.mlp_norm.weight, torch.ones(24))
    assert torch.equal(block.attention.gate.fc2.bias, torch.zeros(3))
    assert 0.005 < float(block.attention.out_proj.weight.detach().std()) < 0.015  # 0.02 / sqrt(2 · 2)
    torch.testing.assert_close(block.attention.compress_k.w, torch.eye(6), rtol=0, atol=0.1)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "heads": ({"num_attention_heads": 5, "num_key_value_heads": 2}, "num_attention_heads|n_heads must be a multiple"),
    "size": ({"hidden_size": 0}, "hidden_size must be"),
    "stride": ({"d": 5}, "must be"),
    "scaling": ({"rope_scaling": {"type": "linear"}}, "rope_scaling has no effect on this model: leave it out"),
    "dropout": ({"attention_dropout": 0.1}, "attention_dropout has no effect"),
    "window": ({"sliding_window": 9}, "sliding_window has no effect"),
}


@pytest.mark.parametrize(("given", "message"), REFUSED.values(), ids=REFUSED)
def test_a_configuration_that_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        hf.NSAConfig(**given)


def test_weights_that_do_not_fit_are_named(make_transformer: Callable[..., Transformer], tmp_path: Path) -> None:
    transformer = make_transformer()
    write_weights(tmp_path, transformer.state_dict())
    for changes, message in (
        ({"n_layers": 3}, r"the weights lack model\.transformer\.blocks\.2"),
        ({"n_layers": 1}, r"the weights have, beyond the configuration, model\.transformer\.blocks\.1"),
        ({"mlp_dim": 21}, r"mlp\.down\.weight must have shape \[24, 21\], got \[24, 20\]"),
    ):
        config = ModelConfig.model_validate(transformer.config.model_dump() | changes)
        with pytest.raises(ValueError, match=message):
            hf.from_checkpoint(tmp_path / "model.pt", config)
    with pytest.raises(ValueError, match="config must be given with a file of weights"):
        hf.from_checkpoint(tmp_path / "model.pt")
