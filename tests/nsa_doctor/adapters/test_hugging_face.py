"""Models of transformers as subjects: small configurations, how they are called, what is said where it is missing."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nsa_doctor.adapters.hugging_face import room
from nsa_doctor.adapters.hugging_face.build import build_model
from nsa_doctor.adapters.hugging_face.installed import named_config
from nsa_doctor.adapters.hugging_face.small_config import small_values
from nsa_doctor.adapters.load import load_subject
from nsa_doctor.cli.main import serve
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.core.frames import top_package
from nsa_doctor.probes.language.feeding import decode
from nsa_doctor.subject.contract import SubjectUnusableError
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

INSTALLED = Path(__file__).parent / "installed"
WAY = {"is_grouped": True, "times": 1, "is_narrow": True}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package transformers with small models of its own, in this process and in its children."""
    for name in [each for each in sys.modules if each.partition(".")[0] == "transformers"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(INSTALLED)
    monkeypatch.setenv("PYTHONPATH", str(INSTALLED))
    yield
    for name in [each for each in sys.modules if each.partition(".")[0] == "transformers"]:
        del sys.modules[name]


def config_class(**defaults: object) -> Callable[..., SimpleNamespace]:
    return lambda **given: SimpleNamespace(**{**defaults, **given})


def test_a_small_model_has_a_layer_of_every_kind():
    kinds = ["full", "full", "sliding", "linear"] * 8
    values = small_values(config_class(num_hidden_layers=32, layer_types=kinds, hidden_size=4096), {}, **WAY)
    assert values["layer_types"] == ["full", "sliding", "linear"]
    assert (values["num_hidden_layers"], values["hidden_size"]) == (3, 64)


def test_sizes_become_small_and_the_rest_stays():
    kind = config_class(
        vocab_size=32000,
        num_key_value_heads=None,
        sliding_window=4096,
        conv_kernel=4,
        rope_theta=1e4,
        hidden_act="silu",
    )
    values = small_values(kind, {"hidden_act": "gelu"}, **WAY)
    assert values == {
        "vocab_size": 128,
        "num_key_value_heads": 2,
        "sliding_window": 8,
        "conv_kernel": 4,
        "hidden_act": "gelu",
    }


def test_special_tokens_lie_below_those_that_are_drawn_and_nothing_is_dropped():
    values = small_values(config_class(pad_token_id=151643, eos_token_id=7, attention_dropout=0.1), {}, **WAY)
    assert values["pad_token_id"] == 0
    assert values["eos_token_id"] == 2
    assert values["attention_dropout"] == 0.0


@pytest.mark.usefixtures("installed")
def test_a_folder_is_its_config_json_and_a_type_goes_before_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    for folder in (tmp_path, tmp_path / "tiny"):
        (folder / "config.json").write_text(json.dumps({"model_type": "tiny", "folder": folder.name}))
    assert named_config(".") == named_config("config.json") == ("tiny", {"folder": tmp_path.name})
    assert named_config("./tiny") == ("tiny", {"folder": "tiny"})
    assert named_config("tiny") == ("tiny", {})


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["tiny", "own_models:OwnForCausalLM"])
def test_the_same_model_is_built_each_time_and_its_script_builds_it_too(name: str):
    model = build_model(name)
    names: dict[str, object] = {}
    exec("\n".join(model.lines), names)
    weights = [dict(each.named_parameters()) for each in (model.module, model.build(), names["model"])]
    assert model.dtype == "float64"
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name
        assert torch.equal(value, weights[2][name]), name


@pytest.mark.usefixtures("installed")
def test_a_configuration_file_is_a_subject(tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "tiny", "architectures": ["X"], "fault": "rows"}), encoding="utf-8")
    assert build_model(str(path)).module.config.fault == "rows"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("longest", [64, pytest.param(None, marks=pytest.mark.full)])
def test_of_its_real_sizes_a_model_is_as_its_configuration_says(longest: int | None, tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "tiny", "num_hidden_layers": 2, "hidden_size": 96}), encoding="utf-8")
    subject = load_subject(SubjectRequest(spec=f"hf:{path}", size="real", lengths=(16,)))
    module = subject.build(0)
    assert (module.config.hidden_size, module.config.num_hidden_layers, module.config.vocab_size) == (96, 2, 5000)
    number = sum(parameter.numel() for parameter in module.parameters())
    assert subject.notes[0].startswith(f"a TinyForCausalLM of its real sizes, {number / 1e6:.0f} million parameters,")
    assert (subject.dtype, subject.options[-2:]) == ("float32", ("--size", "real"))
    examined = replace(subject, max_length=longest or subject.max_length)
    assert run_check(registry.load("FWD201"), examined).verdict is Verdict.PASS


@pytest.mark.usefixtures("installed")
def test_real_sizes_that_no_memory_holds_are_refused_before_anything_is_made(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "free_bytes", lambda: 1_000_000)
    with pytest.raises(SubjectUnusableError, match=r"hf:tiny of its real sizes has 0\.0\d billion .* leave --size out"):
        build_model("tiny", is_small=False)
    assert build_model("tiny").module.config.hidden_size == 64


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("code", ["FWD201", "FWD306", "DEC101", "DEC102", "DEC108"])
def test_checks_are_silent_on_a_healthy_model(code: str):
    subject = load_subject(SubjectRequest(spec="hf:tiny", lengths=(16,)))
    result = run_check(registry.load(code), subject)
    assert result.verdict is Verdict.PASS, result


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("fault", "code"), [("positions", "DEC101"), ("packing", "FWD306"), ("future", "FWD201"), ("argmax", "DEC108")]
)
def test_a_fault_is_found(fault: str, code: str):
    subject = load_subject(SubjectRequest(spec=f"hf:tiny_{fault}", lengths=(16,)))
    result = run_check(registry.load(code), subject)
    assert result.verdict is Verdict.FAIL
    assert f"--subject hf:tiny_{fault}" in result.findings[0].repro


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "verdict"), [("OwnForCausalLM", Verdict.PASS), ("PositionsForCausalLM", Verdict.FAIL)]
)
def test_a_class_that_is_registered_nowhere_is_examined(name: str, verdict: Verdict):
    subject = load_subject(SubjectRequest(spec=f"hf:own_models:{name}", lengths=(16,)))
    result = run_check(registry.load("DEC101"), subject)
    assert result.verdict is verdict
    assert all(f"--subject hf:own_models:{name}" in each.repro for each in result.findings)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("name", "cache"), [("Renamed", "cache"), ("Former", "past_key_values")])
def test_a_cache_is_given_back_by_the_name_that_the_forward_has(name: str, cache: str):
    spec = f"own_models:{name}ForCausalLM"
    model = build_model(spec)
    assert model.cache == cache
    decoded, whole = next(decode(model)).pair()
    assert torch.allclose(decoded, whole)
    for code in ("DEC101", "DEC102"):
        result = run_check(registry.load(code), load_subject(SubjectRequest(spec=f"hf:{spec}", lengths=(16,))))
        assert result.verdict is Verdict.PASS, result


@pytest.mark.usefixtures("installed")
def test_the_shortest_profile_finds_a_generate_that_raises(capsys: pytest.CaptureFixture[str]):
    words = ("--profile", "smoke", "--select", "DEC", "--jobs", "1", "--quiet")
    assert serve(["run", "--subject", "hf:own_models:WithoutContinuation", *words]) == 1
    assert "unexpected keyword argument 'cache' in generate" in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("installed")
def test_a_model_that_raises_in_the_sizes_of_its_configuration_too_is_a_finding(capsys: pytest.CaptureFixture[str]):
    words = ("--profile", "smoke", "--select", "FWD101", "--jobs", "1", "--quiet", "--format", "json")
    assert serve(["run", "--subject", "hf:own_models:RaisingForCausalLM", *words]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["results"][0]["findings"]
    assert "RuntimeError: The size of tensor a" in finding["message"]
    place = finding["where"]
    line = (INSTALLED / "own_models.py").read_text(encoding="utf-8").splitlines()[place["line"] - 1]
    assert (Path(place["file"]).name, line.strip()) == (
        "own_models.py",
        "answer.logits = answer.logits + answer.logits.mT",
    )


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("name", "why"), [("Refusing", "give it images"), ("Large", "IndexError: index 256")])
def test_a_model_that_refuses_or_serves_no_small_sizes_is_not_examined(name: str, why: str):
    with pytest.raises(SubjectUnusableError, match=why):
        build_model(f"own_models:{name}ForCausalLM")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("own_models:WithoutConfig", "whose config_class is set, got WithoutConfig"),
        ("own_models:WithoutMaker", "a class of transformers' PreTrainedModel .* got WithoutMaker"),
        ("own_models:KINDS", "whose config_class is set, got dict"),
        ("own_models:Absent", "class own_models:Absent cannot be imported: own_models has no Absent"),
        ("absent_models:Own", "class absent_models:Own cannot be imported: ModuleNotFoundError"),
    ],
)
def test_what_is_no_class_of_a_model_is_refused(name: str, why: str):
    with pytest.raises(SubjectUnusableError, match=why):
        build_model(name)


def test_the_package_of_a_class_is_the_subjects_own_code():
    assert top_package("hf:own.models:OwnForCausalLM") == ("transformers", "own")
    for name in ("llama", "models/run:a/config.json", "./run:3/config.json"):
        assert top_package(f"hf:{name}") == ("transformers",)


@pytest.mark.usefixtures("installed")
def test_an_unknown_type_is_refused_with_the_nearest():
    with pytest.raises(SubjectUnusableError, match="of type 'tny'; the nearest are tiny"):
        build_model("tny")


@pytest.mark.usefixtures("installed")
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(SubjectUnusableError, match="a configuration with a model_type"):
        build_model(str(path))


@pytest.mark.parametrize("name", ["llama", "my_package.modeling:Own"])
def test_without_transformers_the_extra_is_named(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert serve(["run", "--subject", f"hf:{name}", "--quiet"]) == 2
    assert "pip install 'transformers>=5.23'" in capsys.readouterr().err


@pytest.mark.full
def test_the_installed_transformers_has_a_llama():
    pytest.importorskip("transformers", reason="transformers is not installed: it is the extra hf")
    model = build_model("llama")
    assert model.cache in model.accepts
