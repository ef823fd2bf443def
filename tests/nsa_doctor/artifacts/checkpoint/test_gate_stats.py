"""`nsa-doctor gate-stats`: gates are found, put in numbers, judged layer by layer, and followed from file to file."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from nsa.nn.gate import Gate
from nsa.train.checkpoint import Snapshot, write_checkpoint
from nsa_doctor.artifacts.checkpoint.gate_stats import GateStatsRequest, gate_stats, stats_request
from nsa_doctor.artifacts.checkpoint.reader import ReadRequest, read_checkpoint
from nsa_doctor.artifacts.checkpoint.record import Reading
from nsa_doctor.core.errors import OptionError, UsageError
from nsa_doctor.core.finding import Decision, Report
from nsa_doctor.render import terminal
from nsa_doctor.worker.checkpoint_main import answered
from tests.nsa_doctor.conftest import environment

SIZE = 16


def layer(seed: int, kind: str = "healthy", module: str = "attn.gate") -> dict[str, Tensor]:
    """The parameters of one layer's gate, and of a projection beside it."""
    torch.manual_seed(seed)
    gate = Gate(SIZE, "softmax")
    holder = module.rpartition(".")[0]
    with torch.no_grad():
        for parameter in gate.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.1)
        match kind:
            case "zero":
                gate.fc2.weight.zero_(), gate.fc2.bias.zero_()
            case "zero bias":
                gate.fc2.bias.zero_()
            case "chosen bias":
                gate.fc2.weight.zero_()
            case "collapsed":
                gate.fc2.bias.copy_(torch.tensor([20.0, 0, 0]))
            case "saturated":
                gate.fc2.weight.mul_(1e6)
            case "dead":
                gate.fc2.bias.copy_(torch.tensor([0, 0, -20.0]))
            case "nan":
                gate.fc1.bias[0] = torch.nan
            case "minus inf":
                gate.fc2.bias[0] = -torch.inf
    own = {f"{module}.{name}": parameter.detach().clone() for name, parameter in gate.named_parameters()}
    return {**own, f"{holder}.out_proj.weight".removeprefix("."): torch.randn(4, 4)}


def model(*kinds: str) -> dict[str, Tensor]:
    """One layer for each kind."""
    return {
        f"layers.{index}.{name}": tensor
        for index, kind in enumerate(kinds)
        for name, tensor in layer(index, kind).items()
    }


def saved(path: Path, thing: object) -> str:
    torch.save(thing, path)
    return str(path)


def reading(path: str, **options: object) -> Reading:
    """What is read of a file, in this process."""
    answer = answered({**asdict(ReadRequest(**options)), "path": path, "since": None})
    found = Reading.from_json(answer["read"])
    assert found.fault is None, found.sentence
    return found


def verdicts(path: str, **options: object) -> list[str]:
    return [gate.verdict for gate in reading(path, **options).gates]


def report_of(*paths: str, **options: object) -> Report:
    return gate_stats(GateStatsRequest(paths=paths, read=ReadRequest(**options)))


VERDICTS = {
    "healthy": ("healthy", ""),
    "zero bias": ("healthy", ""),
    "chosen bias": ("healthy", ""),
    "zero": ("zero-initialised", "GAT201"),
    "collapsed": ("collapsed", "GAT202"),
    "saturated": ("saturated", "GAT203"),
    "dead": ("dead branch", "GAT204"),
    "nan": ("not finite", "CKP103"),
    "minus inf": ("not finite", "CKP103"),
}


@pytest.mark.parametrize("kind", VERDICTS)
def test_a_gate_gets_its_verdict_and_one_finding(kind: str, tmp_path: Path) -> None:
    verdict, code = VERDICTS[kind]
    report = report_of(saved(tmp_path / "m.pt", model("healthy", kind, "healthy")))
    assert [gate["verdict"] for gate in report.gates] == ["healthy", verdict, "healthy"]
    assert [finding.code for finding in report.findings] == ([code] if code else [])
    assert all(finding.where.module.startswith("layers.1.attn.gate") for finding in report.findings)
    assert report.decision is (Decision.NO_GO if code else Decision.GO)


def test_a_weight_of_zero_with_a_chosen_bias_is_a_note(tmp_path: Path) -> None:
    report = report_of(saved(tmp_path / "m.pt", model("chosen bias")))
    assert any("the same weights to every input so far" in note for note in report.notes)
    assert report_of(saved(tmp_path / "m.pt", model("healthy"))).notes == ()


def test_many_ill_gates_are_one_finding(tmp_path: Path) -> None:
    report = report_of(saved(tmp_path / "m.pt", model(*["zero"] * 12)))
    assert [finding.code for finding in report.findings] == ["GAT201"]
    assert "so are 11 more" in report.findings[0].message


def test_a_probe_gives_what_the_gate_gives(tmp_path: Path) -> None:
    tensors = layer(3)
    found = reading(saved(tmp_path / "m.pt", tensors)).gates[0]
    gate = Gate(SIZE, "softmax").double()
    gate.load_state_dict({name: tensors[f"attn.gate.{name}"].double() for name in gate.state_dict()})
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((found.probe.num_inputs, SIZE)))
    weights = gate(x[:, None, None]).detach().flatten(0, 2)
    assert [branch.mean for branch in found.probe.branches] == pytest.approx(weights.mean(0).tolist(), abs=1e-12)
    assert [branch.most for branch in found.probe.branches] == pytest.approx(weights.amax(0).tolist(), abs=1e-12)
    entropy = -(weights * weights.log()).sum(-1).mean() / np.log(3)
    assert found.probe.entropy == pytest.approx(float(entropy), abs=1e-12)
    assert [branch.name for branch in found.probe.branches] == ["compressed", "selected", "sliding"]


def test_figures_are_those_of_the_parameters(tmp_path: Path) -> None:
    tensors = layer(4)
    tensors["attn.gate.fc2.weight"][0, :4] = 0
    found = reading(saved(tmp_path / "m.pt", tensors)).gates[0]
    for figures, name in (
        (found.weight, "fc2.weight"),
        (found.bias, "fc2.bias"),
        (found.hidden_weight, "fc1.weight"),
        (found.hidden_bias, "fc1.bias"),
    ):
        values = tensors[f"attn.gate.{name}"].double()
        expected = [values.mean(), values.std(correction=0), values.norm(), (values == 0).double().mean()]
        assert [figures.mean, figures.std, figures.norm, figures.zeros] == pytest.approx([*map(float, expected)])


def test_learned_numbers_without_an_input_are_judged(tmp_path: Path) -> None:
    tensors = {"alpha": torch.tensor([9.0, 0, 0]), "beta": torch.zeros(3)}
    found = reading(saved(tmp_path / "m.pt", tensors), pattern="alpha|beta").gates
    assert [(gate.layer, gate.verdict) for gate in found] == [("alpha", "collapsed"), ("beta", "healthy")]


def test_what_is_no_gate_by_its_shape_is_not_judged(tmp_path: Path) -> None:
    report = report_of(saved(tmp_path / "m.pt", {"mix": torch.randn(2, 3, 4)}), pattern="mix")
    assert [gate["verdict"] for gate in report.gates] == ["not probed"]
    assert report.decision is Decision.UNKNOWN


def test_no_gate_is_unknown_and_names_what_comes_near(tmp_path: Path) -> None:
    report = report_of(saved(tmp_path / "m.pt", {"a.g_proj.weight": torch.randn(12, 8), "w": torch.ones(2)}))
    assert report.decision is Decision.UNKNOWN
    assert "a.g_proj.weight [12, 8]" in terminal.render(report)


@pytest.mark.parametrize(
    ("activation", "verdict"), [(None, "saturated"), ("softmax", "healthy"), ("sigmoid", "saturated")]
)
def test_logits_that_no_softmax_would_have_are_a_sigmoid_s(
    activation: str | None, verdict: str, tmp_path: Path
) -> None:
    """All shifted alike, which a softmax does not see; unless it is said to be one."""
    for name in ("gate", "gate.fc2"):
        tensors = {f"{name}.weight": torch.randn(3, 8) * 0.1, f"{name}.bias": torch.full((3,), 30.0)}
        assert verdicts(saved(tmp_path / "m.pt", tensors), activation=activation) == [verdict]


def test_a_verdict_that_hangs_on_the_activation_is_left_open(tmp_path: Path) -> None:
    """A healthy switch for each branch looks like a softmax that has collapsed."""
    tensors = {"gate.weight": torch.randn(3, 8) * 0.05, "gate.bias": torch.tensor([5.0, -1, -1])}
    path = saved(tmp_path / "m.pt", tensors)
    (gate,) = reading(path).gates
    assert gate.unprobed == "healthy as a sigmoid and collapsed as a softmax; --activation says which it is"
    assert report_of(path).decision is Decision.UNKNOWN
    assert verdicts(path, activation="sigmoid") == ["healthy"]
    assert verdicts(path, activation="softmax") == ["collapsed"]
    renamed = {f"gate.fc2.{key.rpartition('.')[2]}": tensor for key, tensor in tensors.items()}
    assert verdicts(saved(tmp_path / "n.pt", renamed)) == ["collapsed"]


ILL_EITHER_WAY = {"collapsed": [20.0, 0, 0], "dead branch": [0, 0, -20.0]}


@pytest.mark.parametrize("verdict", ILL_EITHER_WAY)
def test_what_is_ill_either_way_needs_no_saying(verdict: str, tmp_path: Path) -> None:
    tensors = {"gate.weight": torch.randn(3, 8) * 0.05, "gate.bias": torch.tensor(ILL_EITHER_WAY[verdict])}
    assert verdicts(saved(tmp_path / "m.pt", tensors)) == [verdict]


def test_the_configuration_in_a_file_says_which_activation(tmp_path: Path) -> None:
    thing = {"model": model("healthy"), "config": {"nsa": {"gate": "softmax", "gate_temperature": 4.0}}}
    found = reading(saved(tmp_path / "m.pt", thing))
    assert found.gates[0].form.endswith(", softmax at temperature 4, as configured")
    assert reading(saved(tmp_path / "m.pt", {**thing, "config": {"gate": "relu"}})).gates[0].form.endswith(", softmax")


def test_a_collapsed_sigmoid_has_one_branch_open(tmp_path: Path) -> None:
    tensors = {"gate.weight": torch.randn(3, 8) * 0.1, "gate.bias": torch.tensor([0.5, -20, -20])}
    assert verdicts(saved(tmp_path / "m.pt", tensors), activation="sigmoid") == ["dead branch"]
    tensors["gate.bias"] = torch.tensor([3.0, -20, -20])
    assert verdicts(saved(tmp_path / "m.pt", tensors), activation="sigmoid") == ["collapsed"]


def test_one_head_that_ignores_a_branch_is_no_illness(tmp_path: Path) -> None:
    weight, bias = torch.randn(12, 8) * 0.1, torch.zeros(12)
    bias[4] = -20
    tensors = {"g_proj.weight": weight, "g_proj.bias": bias}
    assert verdicts(saved(tmp_path / "m.pt", tensors), pattern="g_proj") == ["healthy"]
    bias[1::3] = -20
    assert verdicts(saved(tmp_path / "m.pt", tensors), pattern="g_proj") == ["dead branch"]


def test_gates_are_followed_from_file_to_file(tmp_path: Path) -> None:
    first, second = model("healthy", "healthy"), model("healthy", "healthy")
    for name, tensor in second.items():
        if "layers.1.attn.gate" not in name:
            tensor.mul_(1.5)
    report = report_of(saved(tmp_path / "a.pt", first), saved(tmp_path / "b.pt", {"model": second}))
    drifts = [gate["drift"] and gate["drift"]["relative"] for gate in report.gates]
    assert drifts == [None, None, pytest.approx(0.5), 0]
    assert [(finding.code, finding.where.module) for finding in report.findings] == [("GAT205", "layers.1.attn.gate")]


def test_what_was_frozen_with_its_layer_is_no_illness(tmp_path: Path) -> None:
    first, second = model("healthy", "healthy"), model("healthy", "healthy")
    for name, tensor in second.items():
        if "layers.0" in name:
            tensor.mul_(1.5)
    report = report_of(saved(tmp_path / "a.pt", first), saved(tmp_path / "b.pt", second))
    assert report.findings == ()
    assert report.decision is Decision.GO


def test_the_same_file_twice_is_no_illness(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", model("healthy"))
    assert report_of(path, path).decision is Decision.GO


def test_containers_give_the_same_numbers(tmp_path: Path) -> None:
    tensors = model("healthy", "dead")
    save_file(tensors, tmp_path / "m.safetensors")
    found = [reading(saved(tmp_path / "m.pt", tensors)), reading(str(tmp_path / "m.safetensors"))]
    assert found[0].gates == found[1].gates


def test_a_report_says_that_safetensors_has_no_checksum(tmp_path: Path) -> None:
    save_file(model("healthy"), tmp_path / "m.safetensors")
    assert reading(str(tmp_path / "m.safetensors")).notes == (
        "safetensors keeps no checksum: values that changed since it was written cannot be detected",
    )


def test_a_manifest_is_the_checksum_of_its_safetensors(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, Snapshot(step=1, model=model("healthy")), keep_last=1)
    assert reading(str(path)).notes == ()


def test_a_report_says_which_file_it_is_about(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.pt", model("healthy"))
    expected = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    report = report_of(path)
    assert report.subject["identity"] == {"file": path, "sha256": expected}
    assert f"sha256 {expected[:16]}" in terminal.render(report)


def test_a_reading_survives_its_way_through_json(tmp_path: Path) -> None:
    first = saved(tmp_path / "a.pt", model("healthy", "nan", "dead"))
    found = read_checkpoint(saved(tmp_path / "b.pt", model("healthy", "nan", "zero")), ReadRequest(), first)
    assert found.gates[0].drift is not None
    assert Reading.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_file_that_is_none_is_refused_as_usage(tmp_path: Path) -> None:
    good = saved(tmp_path / "m.pt", model("healthy"))
    with pytest.raises(UsageError, match=r"none\.pt' is not there; check the path"):
        report_of(good, str(tmp_path / "none.pt"))


def test_a_report_fits_eighty_columns_without_colour(tmp_path: Path) -> None:
    deep = {f"a.very.long.name.{'x' * 30}.{name}": tensor for name, tensor in model("dead").items()}
    wide = {"w_gate": torch.randn(16, 8)}
    for thing, options in ((model(*VERDICTS), {}), (deep, {}), (wide, {"num_branches": 16})):
        path = saved(tmp_path / "m.pt", thing)
        text = terminal.render(report_of(path, path, **options))
        tables = text.partition("again")[0].replace(str(tmp_path), "")
        assert max(map(len, tables.splitlines())) <= 80
        assert "\x1b" not in text


WRONG = {
    "--pattern": {"pattern": ""},
    "--num-branches": {"num_branches": 1},
    "--activation": {"activation": "relu"},
    "--seed": {"seed": -1},
    "--timeout": {"timeout": float("nan")},
    "FILE": {"files": ["x"] * 2000},
}


@pytest.mark.parametrize("option", WRONG)
def test_a_wrong_option_is_named(option: str) -> None:
    given = {"files": ["x"], "pattern": None, "num_branches": 3, "activation": None, "seed": 0, "timeout": 60.0}
    with pytest.raises(OptionError, match=option):
        stats_request(**{**given, **WRONG[option]})


def test_a_broken_pattern_is_refused() -> None:
    given = {"files": ["x"], "num_branches": 3, "activation": None, "seed": 0, "timeout": 60.0}
    with pytest.raises(OptionError, match="neither a glob nor a regular expression"):
        stats_request(pattern="a(b", **given)
    assert stats_request(pattern="*.(mix", **given).read.pattern == "*.(mix"


def test_the_command_writes_a_report_that_renders_again(tmp_path: Path, doctor: Callable) -> None:
    path, report = saved(tmp_path / "m.pt", model("healthy", "zero")), tmp_path / "report.json"
    done = doctor("gate-stats", path, "--output", str(report))
    assert (done.returncode, done.stderr.splitlines()) == (1, [f"1/1 {path}"])
    again = doctor("render", str(report))
    assert again.stdout == done.stdout
    written = json.loads(report.read_text())
    assert [gate["verdict"] for gate in written["gates"]] == ["healthy", "zero-initialised"]
    assert written["results"][0]["findings"] == []
    assert written["subject"]["files"][0]["num_tensors"] == 10


def test_the_command_answers_without_torch(tmp_path: Path) -> None:
    """Neither process imports it: that alone would take longer than the work."""
    path = saved(tmp_path / "m.pt", model("healthy"))
    program = (
        "import sys; from nsa_doctor.cli.main import serve; "
        f"code = serve(['gate-stats', '--quiet', {path!r}]); sys.exit(9 if 'torch' in sys.modules else code)"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    imports = "import sys, nsa_doctor.worker.checkpoint_main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", imports], env=environment(), check=False).returncode == 0
