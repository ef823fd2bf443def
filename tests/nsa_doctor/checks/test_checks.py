"""Every check has one shape, finds the bug it plants, and is silent on the healthy subject."""

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from nsa.config import load_config
from nsa_doctor.artifacts.data.sources import of_config
from nsa_doctor.artifacts.data.subject import DataSubject
from nsa_doctor.artifacts.judging import judge
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.core import registry
from nsa_doctor.core.check import Check, parse_manual
from nsa_doctor.core.deduplicate import deduplicate
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.finding import Finding, Verdict
from nsa_doctor.engine.conclusions import with_observed
from nsa_doctor.isolation.supervisor import Supervisor
from nsa_doctor.subject.contract import Subject
from nsa_doctor.testing.training_runs import trained
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.offered import (
    of_two_layers,
    with_a_cell,
    with_a_choice,
    with_a_drop_path,
    with_a_loop,
    with_a_loss_of_targets,
    with_a_sampler,
    with_a_time,
    with_an_adapter,
    with_an_optimizer,
    with_attention,
    with_dropout,
    with_experts,
    with_layers,
    with_one_answer,
    with_positions,
    with_projections,
    with_times,
)
from tests.nsa_doctor.checks.offered_beams import with_beams
from tests.nsa_doctor.conftest import HERE

KINDS = {code: entry.examines for code, entry in registry.entries().items()}
CODES = [code for code, kind in KINDS.items() if kind == "module"]
OF_CHECKPOINTS = [code for code, kind in KINDS.items() if kind == "checkpoint"]
OF_RUNS = [code for code, kind in KINDS.items() if kind == "run"]
LONG = ("DST101", "DST102", "DST103", "DST104", "TRN403")  # two processes, or much waiting: on demand, as TRN401 stays
COMPUTED_AGAIN = ("TRN601",)  # asked for with an option
OF_DATA = [code for code, kind in KINDS.items() if kind == "data"]
IN_PROCESS = [code for code in CODES if not registry.load(code).isolate]
ISOLATED = sorted(set(CODES) - set(IN_PROCESS))
PLACED_AT_FORWARD = {"FWD102"}  # a wrong shape is placed where the module's forward is defined
PLACED_WHERE_READ = {"ENV103"}  # a flag's line, whoever does not follow it
# Whose blocks are cut at other tokens in the shorter call: the compressor is where the two part, whatever leaks.
PLACED_WHERE_LENGTHS_PART = {"FWD224"}
WITHOUT_A_LINE = {"ENV102"}  # the machine is at fault, not the code
LONGEST = 2100  # of what serves 8,000 tokens and more, which take a minute
ABOUT_TOKENS = {"GRD207", "DEC108", "DEC109", "FWD239", "FWD252", "FWD253", "FWD264"}
_MOST_FINDINGS = 3


def complaints(check: Check, subject: Subject) -> Iterator[str]:
    """What is wrong with a check, seen on a subject that is healthy."""
    sound = run_check(check, subject)
    if sound.verdict is not Verdict.PASS or sound.findings:
        yield f"{sound.verdict} on the healthy subject: {sound.reason or sound.findings}"
    host = of_two_layers(subject) if check.manual.code in ("PRF301", "PRF302") else subject  # it takes 1,000 steps
    faulty, beside = run_check(check, check.planted(host)).parted()
    left = [
        each for result in deduplicate(with_observed([faulty], beside), registry.entries()) for each in result.findings
    ]
    if any(each.code != check.manual.code for each in left):
        yield f"beside it, for one planted bug: {[each.code for each in left]}"
    if faulty.verdict is not Verdict.FAIL:
        yield f"{faulty.verdict} on its own planted bug: {faulty.reason}"
    if len(faulty.findings) > _MOST_FINDINGS:
        yield f"{len(faulty.findings)} findings for one planted bug"
    for finding in faulty.findings:
        if finding.code != check.manual.code:
            yield f"a finding bears the code {finding.code}"
        if Path(finding.where.file).name != Path(check.run.__code__.co_filename).name and finding.code not in (
            *PLACED_AT_FORWARD,
            *PLACED_WHERE_READ,
            *PLACED_WHERE_LENGTHS_PART,
            *WITHOUT_A_LINE,
        ):
            yield f"the finding is placed at {finding.where}, not where the bug is planted"
        if not re.match(r"nsa-doctor [a-z]", finding.repro):
            yield f"the finding cannot be repeated by {finding.repro!r}"


def step_down(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
    """A training step as it should be, for checks that need a loop."""
    optimizer.zero_grad()
    loss = module(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def likeliest(module: nn.Module, ids: Tensor, num_tokens: int) -> Tensor:
    """Each row of `ids` and what follows it without chance."""
    for _ in range(num_tokens):
        ids = torch.cat((ids, module(ids[:, -1:]).argmax(-1)), dim=1)
    return ids


def drawn(module: nn.Module, ids: Tensor, temperature: float, seed: int) -> Tensor:
    """Each row of `ids` and one token more, by chance."""
    weights = (module(ids[:, -1]) / temperature).softmax(-1)
    return torch.cat((ids, weights.multinomial(1, generator=torch.Generator().manual_seed(seed))), dim=1)


def pairs_of_tokens() -> Subject:
    """A model of which token follows which, and its loss, for checks that are about tokens alone."""
    return Subject(
        name="pairs",
        build=lambda _seed: nn.Sequential(nn.Embedding(23, 8), nn.Linear(8, 23)),
        forward=lambda module, ids: module(ids),
        loss=lambda module, ids: cross_entropy(module(ids[:, :-1]).mT, ids[:, 1:]),
        generate=likeliest,
        draw=drawn,
        input="tokens",
        width=23,
    )


def with_a_loss(subject: Subject) -> Subject:
    """It returns a loss that trains beside its output."""

    def forward(module: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        output = subject.forward(module, x)
        return output, {"aux_loss": output.square().mean()}

    return replace(subject, forward=forward)


def with_padding(subject: Subject) -> Subject:
    """Padding behind a row is nothing to a causal module, and padding before it is cut off."""

    def padded(module: nn.Module, x: Tensor, keep: Tensor) -> Tensor:
        rows = []
        for row, own in zip(x, keep, strict=True):
            first = int(own.int().argmax())
            rows.append(nn.functional.pad(subject.forward(module, row[None, first:])[0], (0, 0, first, 0)))
        return torch.stack(rows)

    return replace(subject, padded=padded)


def with_a_cache_of_tokens(subject: Subject) -> Subject:
    """Its cache holds the tokens, which every step reads again: rows chosen, tokens removed, all copied or dropped."""

    def step(module: nn.Module, x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        whole = torch.cat((cache, x), dim=1)
        return subject.forward(module, whole)[:, -x.shape[1] :], whole

    return replace(
        subject,
        prefill=lambda module, x: (subject.forward(module, x), x),
        step=step,
        reorder=lambda module, cache, rows: cache[rows],
        crop=lambda module, cache, num_kept, num_removed: cache[:, :num_kept],
        fork=lambda module, cache: cache.clone(),
        reset=lambda module, cache: cache[:, :0],
    )


OFFERING = {  # what the built-in layer does not, or without what it does
    "GRD210": with_a_loss,
    **dict.fromkeys(("FWD226", "FWD273"), with_padding),
    "FWD228": of_two_layers,
    "FWD227": lambda subject: replace(subject, geometry=None),
    "FWD229": with_positions,
    "FWD230": with_attention,
    **dict.fromkeys(("FWD231", "FWD278", "FWD279"), with_dropout),
    "FWD241": with_an_adapter,
    "FWD243": lambda subject: replace(with_attention(subject), spec=("bidirectional",)),
    "FWD232": with_layers,
    "FWD255": with_a_drop_path,
    "FWD256": with_one_answer,
    "FWD257": with_experts,
    **dict.fromkeys(("FWD258", "FWD270"), with_a_time),
    "FWD275": with_times,
    "FWD259": with_a_choice,
    "FWD272": with_a_cell,
    "FWD260": with_attention,
    "FWD263": with_projections,
    "GRD214": with_a_loop,
    "GRD231": with_an_optimizer,
    **dict.fromkeys(("GRD228", "GRD229", "GRD230", "GRD233", "GRD235", "GRD236", "GRD239"), with_a_loss_of_targets),
    "GRD215": with_a_loop,
    "GRD216": with_a_loop,
    "GRD217": with_a_loop,
    "GRD220": with_a_loop,
    "GRD221": with_a_loop,
    "PRF203": lambda subject: replace(subject, max_length=512),
    "DEC113": with_a_cache_of_tokens,
    "DEC114": with_a_cache_of_tokens,
    "DEC115": with_a_cache_of_tokens,
    "DEC116": with_a_cache_of_tokens,
    "DEC117": with_a_sampler,
    "DEC118": with_beams,
}


def subject_for(code: str, small: Subject) -> Subject:
    """The healthy subject, with what the check asks of it."""
    subject = replace(small, train_step=step_down) if "train_step" in registry.load(code).needs else small
    subject = OFFERING.get(code, lambda each: each)(subject)
    subject = pairs_of_tokens() if code in ABOUT_TOKENS else subject
    return replace(subject, longest=min(subject.longest, LONGEST))


@pytest.mark.parametrize("code", IN_PROCESS)
def test_a_check_finds_what_it_plants_and_nothing_else(code: str, small: Subject) -> None:
    assert list(complaints(registry.load(code), subject_for(code, small))) == []


@pytest.fixture(scope="module")
def healthy_run() -> RunSubject:
    return trained(is_computed_again=True)


@pytest.mark.parametrize(
    "code", [pytest.param(code, marks=[pytest.mark.full] if code in LONG else []) for code in OF_RUNS]
)
def test_a_check_of_runs_finds_what_it_plants_and_nothing_else(code: str, healthy_run: RunSubject) -> None:
    check = registry.load(code)
    sound = judge(check, healthy_run)
    assert (sound.verdict, sound.findings) in ((Verdict.PASS, ()), (Verdict.SKIP, ()))
    faulty = judge(check, check.planted(healthy_run))
    assert (faulty.verdict, len(faulty.findings)) == (Verdict.FAIL, 1), faulty.reason
    again = "nsa-doctor watch it --recompute" if code in COMPUTED_AGAIN else "nsa-doctor watch it"
    assert (faulty.findings[0].code, faulty.findings[0].repro) == (code, again)


def source_of_batches() -> DataSubject:
    """The batches of a small configuration."""
    return replace(of_config(load_config(HERE / "small.yaml")), options=("it",))


@pytest.mark.parametrize("code", OF_DATA)
def test_a_check_of_data_finds_what_it_plants_and_nothing_else(code: str) -> None:
    check, source = registry.load(code), source_of_batches()
    sound = judge(check, source)
    assert (sound.verdict, sound.findings, sound.notes) == (Verdict.PASS, (), ()), sound.reason
    faulty = judge(check, check.planted(source))
    assert (faulty.verdict, len(faulty.findings)) == (Verdict.FAIL, 1), faulty.reason
    assert (faulty.findings[0].code, faulty.findings[0].repro) == (code, "nsa-doctor data it")
    assert faulty.findings[0].where.file


def test_checks_of_another_kind_are_no_part_of_an_examination() -> None:
    chosen = {entry.manual.code for entry in registry.select((), (), "full")}
    of_files = {entry.manual.code for entry in registry.select((), (), "full", "checkpoint")}
    assert (chosen, of_files) == (set(CODES), set(OF_CHECKPOINTS))
    with pytest.raises(ValueError, match=r"CKP examines a checkpoint \(nsa-doctor gate-stats FILE\)"):
        registry.select(("CKP",), (), "full")


@pytest.mark.parametrize("code", ISOLATED)
def test_an_isolated_check_finds_what_it_plants_and_nothing_else(code: str) -> None:
    supervisor = Supervisor(ExaminationRequest(config=str(HERE / "small.yaml")))
    try:
        assert supervisor.load() == []
        assert supervisor.check(code, seconds=60).verdict is Verdict.PASS
        faulty = supervisor.check(code, seconds=1, planted=True)
    finally:
        supervisor.close()
    assert faulty.verdict is Verdict.TIMEOUT
    assert Path(faulty.findings[0].where.file).name.startswith(code.lower())
    assert faulty.findings[0].where.function == "never_advances"


@pytest.mark.parametrize("path", registry.check_files(), ids=lambda path: path.stem)
def test_a_check_has_the_shape_of_a_check(path: Path) -> None:
    check = registry.load(path.stem[:6].upper())
    manual = check.manual
    assert path.stem == f"{manual.code.lower()}_{manual.name.replace('-', '_')}"
    assert path.parent.name == manual.code[:3].lower()
    assert not re.search(r"\b(not|never|no)-.*(good|fine|correct)\b", manual.name), "the name is the illness"
    assert set(check.needs) <= set(Subject.__dataclass_fields__)
    for part in (manual.detects, manual.matters, manual.fix):
        assert part.endswith(".")


def dummy(run, planted=lambda subject: subject) -> Check:
    return Check(doc="NAN999 dummy\n\nDetects: a.\nMatters: b.\nFix: c.\n", run=run, planted=planted)


def test_a_check_that_cannot_fail_is_a_defect(small: Subject) -> None:
    assert any(
        "PASS on its own planted bug" in complaint for complaint in complaints(dummy(lambda subject: iter(())), small)
    )


def test_a_check_that_always_fails_is_a_defect(small: Subject) -> None:
    check = dummy(lambda subject: iter([Finding(message="always")]))
    assert any("FAIL on the healthy subject" in complaint for complaint in complaints(check, small))


def test_a_check_that_breaks_is_a_crash_and_not_a_fail(small: Subject) -> None:
    def run(subject: Subject) -> Iterator[Finding]:
        raise ZeroDivisionError("the doctor's own")
        yield

    result = run_check(dummy(run), small)
    assert (result.verdict, result.reason) == (Verdict.CRASH, "ZeroDivisionError: the doctor's own")


def test_a_subject_without_the_seam_is_skipped(small: Subject) -> None:
    check = replace(dummy(lambda subject: iter(())), needs=("loss", "train_step"))
    result = run_check(check, small)
    assert result.verdict is Verdict.SKIP
    assert result.reason.endswith("offers no loss (seam loss) and no training step (seam train_step)")


@pytest.mark.parametrize(
    "doc",
    [
        None,
        "",
        "NAN1 short",
        "NAN101 Capital",
        "NAN101 a\n\nDetects: x.",
        "NAN101 a\n\nFix: x.\nMatters: y.\nDetects: z.",
        "NAN101 a\n\nDetects: x.\nMatters: y.\nFix: z.\n\nExample: in words.",
        "NAN101 a\n\nDetects: x.\nMatters: y.\nFix: z.\n\nExample:\n",
    ],
)
def test_a_malformed_manual_is_refused(doc: str | None) -> None:
    with pytest.raises(ValueError, match=r"docstring must"):
        parse_manual(doc)


@pytest.mark.parametrize("code", KINDS)
def test_every_manual_has_an_example_of_faulty_code_and_of_the_same_code_mended(code: str) -> None:
    example = registry.manual(code).example
    _, faulty, correct = re.split(r"^# (?:faulty|correct)\n", example, flags=re.MULTILINE)
    assert re.findall(r"^# (faulty|correct)$", example, flags=re.MULTILINE) == ["faulty", "correct"]
    assert ast.unparse(ast.parse(faulty)) != ast.unparse(ast.parse(correct)), "they differ in comments alone"


def test_an_example_is_kept_as_it_was_written() -> None:
    code = "    # faulty\n    if a:\n        b: int = 1\n\n    # correct\n"
    manual = parse_manual(f"NAN101 a\n\nDetects: x.\nMatters: y.\nFix: z.\n\nExample:\n{code}")
    assert (manual.fix, manual.example) == ("z.", "# faulty\nif a:\n    b: int = 1\n\n# correct")


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(2, 51))])
def test_healthy_nsa_is_silent_whatever_the_seed(seed: int, small: Subject) -> None:
    subject = replace(small, seed=seed, max_length=32)
    subject = replace(subject, train_step=step_down)
    results = [run_check(registry.load(code), subject) for code in IN_PROCESS if code.startswith("NAN")]
    assert [result.verdict for result in results] == [Verdict.PASS] * len(results)
