"""The faults of `tests.false_go` are faults, its healthy subjects are drawn in, and its rates are counted rightly."""

import importlib.util
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor import Adapter
from nsa_doctor.subject.contract import Subject
from tests.false_go.__main__ import earlier
from tests.false_go.conditions import CONDITIONS
from tests.false_go.effects import EFFECTS
from tests.false_go.examination import Examined, Healthy, examine, read_verdict
from tests.false_go.fault import Effect, Fault, Host, write
from tests.false_go.healthy import healthy_subjects
from tests.false_go.product import HOSTS, drawn, product
from tests.false_go.score import Score, page, render
from tests.false_go.situations import SITUATIONS
from tests.gallery.examination import Ended, Found
from tests.gallery.score import Share

BY_NAME = {host.name: host for host in HOSTS}
WIDTHS = {"block": 24, "sparse": 32, "recurrence": 20, "multihead": 16, "decoder": 40, "cached": 36, "encoder": 30}


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[[Fault], ModuleType]]:
    """Writes a fault to a file and imports it."""
    loaded: list[str] = []

    def imported(fault: Fault) -> ModuleType:
        file = tmp_path / f"{fault.file_name}.py"
        file.write_text(write(fault).text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(fault.file_name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[fault.file_name] = module
        loaded.append(fault.file_name)
        spec.loader.exec_module(module)
        return module

    yield imported
    for name in loaded:
        sys.modules.pop(name, None)


def built(module: ModuleType) -> nn.Module:
    torch.manual_seed(0)
    made = module.make()
    if isinstance(made, Subject):
        return made.build(0)
    return made.make() if isinstance(made, Adapter) else made


def named(conditions_or_effects, name: str):
    return next(each for each in conditions_or_effects if each.name == name)


def test_every_condition_and_effect_written_together_is_python() -> None:
    assert sum(1 for _ in product()) > 10_000
    pairs = {(fault.condition.name, fault.effect.name): fault for fault in product()}
    for fault in random.Random(0).sample(sorted(pairs.values(), key=lambda each: each.name), 400):
        compile(write(fault).text, fault.name, "exec")


def test_a_draw_has_every_condition_once_and_fifteen_faults_in_each_host() -> None:
    faults = drawn(0, len(CONDITIONS))
    assert len(faults) >= 80
    assert {fault.condition for fault in faults} == set(CONDITIONS)
    assert min(Counter(fault.host for fault in faults).values()) >= 15
    assert min(Counter(fault.effect for fault in faults).values()) >= 2
    assert {fault.effect for fault in faults} == set(EFFECTS)


def test_another_seed_draws_other_faults_and_the_same_seed_the_same() -> None:
    names = [{fault.name for fault in drawn(seed, 60)} for seed in (0, 1, 0)]
    assert len(names[0] & names[1]) < 10
    assert names[0] == names[2]


def test_the_lines_at_fault_are_those_that_were_added() -> None:
    fault = Fault(BY_NAME["block"], named(CONDITIONS, "second_call"), named(EFFECTS, "sign"))
    written = write(fault)
    lines = written.text.splitlines()
    assert [lines[number - 1].strip() for number in sorted(written.lines)] == ["if self.calls == 2:", "y = -y"]
    assert "self.calls += 1" in written.text


def test_the_lines_of_a_backward_are_lines_at_fault() -> None:
    fault = Fault(BY_NAME["block"], named(CONDITIONS, "third_backward"), named(EFFECTS, "backward_halves"))
    lines, at_fault = write(fault).text.splitlines(), write(fault).lines
    assert {"grad = grad / 2", "y = Rescaled.apply(y, self)"} <= {lines[number - 1].strip() for number in at_fault}


HARMLESS_HERE = ("hangs", "dies")
ALWAYS = named(CONDITIONS, "training")


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.name)
@pytest.mark.parametrize(
    "effect", [each for each in EFFECTS if not each.name.endswith(HARMLESS_HERE)], ids=lambda effect: effect.name
)
def test_an_effect_changes_what_a_host_computes(host: Host, effect: Effect, load) -> None:
    always = replace(ALWAYS, test="True", name="always")
    never = replace(ALWAYS, test="False", name="never")
    seen = [outcome(built(load(Fault(host, condition, effect))), host) for condition in (never, never, always)]
    assert same(seen[0], seen[1])
    assert not same(seen[0], seen[2])


def outcome(model: nn.Module, host: Host) -> list[Tensor] | str:
    """Output, input afterwards and gradients of one call, or what it raises."""
    generator = torch.Generator().manual_seed(1)
    shape, tokens = (3, 12), host.input == "tokens"
    width = WIDTHS[host.name]
    x = torch.randint(width, shape, generator=generator) if tokens else torch.randn(*shape, width, generator=generator)
    try:
        y = model(x)
        (y * torch.randn(y.shape, generator=generator)).sum().backward()
    except (RuntimeError, IndexError) as error:
        return type(error).__name__
    return [y.detach(), x, *(torch.zeros(()) if p.grad is None else p.grad for p in model.parameters())]


def same(left: list[Tensor] | str, right: list[Tensor] | str) -> bool:
    if isinstance(left, str) or isinstance(right, str):
        return left == right
    return all(
        a.shape == b.shape and torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_condition_holds_in_its_situation(name: str, load) -> None:
    condition = named(CONDITIONS, name)
    host = "decoder" if condition.input == "tokens" else "recurrence" if condition.site == "step" else "block"
    effect = named(EFFECTS, "backward_raises" if condition.phase == "backward" else "raises")
    fault = Fault(BY_NAME[host], condition, effect)
    assert fault.is_possible
    model = built(load(fault))
    with pytest.raises(RuntimeError, match="cannot serve"):
        SITUATIONS[name](model)


def test_all_conditions_but_a_second_device_have_a_situation() -> None:
    assert {condition.name for condition in CONDITIONS} - set(SITUATIONS) == {"second_device"}


def test_there_are_enough_healthy_subjects_with_names_of_their_own() -> None:
    names = [each.name for each in healthy_subjects()]
    assert len(names) == len(set(names))
    assert len(names) - len(HOSTS) >= 80


BLOCK = BY_NAME["block"]
FAULT = Fault(BLOCK, named(CONDITIONS, "second_call"), named(EFFECTS, "sign"))


def judged(decision: str, subject: Fault | Healthy = FAULT, **kwargs) -> Examined:
    return Examined(subject=subject, decision=decision, seconds=1.0, **kwargs)


def test_a_score_counts_false_goes_and_false_alarms() -> None:
    well = Healthy("tests.a", "make")
    examined = [judged("GO"), judged("NO-GO"), judged("UNKNOWN"), judged("GO", well), judged("NO-GO", well)]
    score = Score(tuple(examined))
    assert score.false_goes == Share(1, 3)
    assert score.false_alarms == Share(1, 2)
    text = "\n".join(render(score))
    assert "false GO           1 of   3" in text
    assert "block-second_call-sign" in text
    assert "| calls | 3 | 1 | 1 | 1 |" in page(score, 0, "foreign")
    assert json.loads(json.dumps(score.as_json()))["false_go"]["hits"] == 1


@pytest.mark.parametrize(
    ("found", "place"),
    [
        ({"module": "attn", "file": "block_second_call_sign.py", "line": 30}, "line"),
        ({"module": "attn", "file": "block_second_call_sign.py", "line": 1}, "module"),
        ({"module": "norm", "file": "other.py", "line": 30}, "elsewhere"),
    ],
)
def test_a_place_is_judged_by_the_lines_that_were_added(found: dict, place: str, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    finding = {"code": "FWD206", "message": "x", "where": {"module_class": "", **found}, "also": []}
    results = [{"code": "FWD206", "verdict": "FAIL", "findings": [finding]}]
    file.write_text(json.dumps({"results": results, "verdict": {"decision": "NO-GO", "why": ["FWD206"]}}))
    examined = read_verdict(FAULT, Ended(1, 2.0), file, frozenset({30}))
    assert (examined.decision, examined.place) == ("NO-GO", place)
    assert isinstance(examined.findings[0], Found)


def test_a_run_goes_on_after_what_an_earlier_one_wrote(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    done = judged("NO-GO", findings=(Found(code="FWD206", message="x", also=("GRD102",)),), why=("a",), place="line")
    file.write_text(json.dumps(Score((done, judged("GO", Healthy("tests.a", "make")))).as_json()))
    assert earlier(file, [FAULT]) == [done]


def test_a_run_without_a_report_has_no_answer(tmp_path: Path) -> None:
    examined = read_verdict(FAULT, Ended(4, 2.0, complaint="a\nb"), tmp_path / "none.json", frozenset())
    assert (examined.decision, examined.why) == ("no answer", ("b",))


SAMPLE = {"decoder-every_second_call-nan": "NO-GO", "block-make": "GO"}  # a fault and a healthy subject


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["decoder-every_second_call-nan", pytest.param("block-make", marks=pytest.mark.full)])
def test_a_sample_is_decided_rightly(name: str) -> None:
    subject = next(each for each in (*healthy_subjects(), *product()) if each.name == name)
    assert examine(subject, "foreign", 380).decision == SAMPLE[name]
