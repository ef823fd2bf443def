"""Reports to render: a realistic one with everything in it that a report may hold, and one of any text."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

from nsa_doctor.core.check import Manual
from nsa_doctor.core.finding import Finding, Report, Result, Verdict
from nsa_doctor.core.measurement import Census, Measurement, Place, Point, Trouble
from nsa_doctor.core.policy_verdict import Accepted, Compared, LimitResult, LimitStatus, PolicyVerdict, Required
from nsa_doctor.core.power import FamilyRecall, Power
from nsa_doctor.core.proof import Fate, MutantFate, Proof

REPOSITORY = "/home/me/repo"
HOSTILE = {
    "markup": "<script>alert(1)</script><img src=x onerror=alert(1)>[bold red]]]>",
    "entities": "&lt;b&gt; &amp;amp; &#60;script&#62; &xxe; <!-- --> <![CDATA[ ]]>",
    "markdown": "| a | b |\n|---|---|\n# head\n- item\n> quote\n```\n~~~\n***bold*** _it_ ~~no~~ `code` ``x`",
    "links": "[click](https://evil.example) ![x](http://evil.example/x.png) https://evil.example www.evil.example <http://e.example>",
    "mentions": "@octocat @org/team #1 GH-2 octo/repo#3 a@b.example :boom: mailto:a@b.example",
    "commands": "::error file=x,line=1::gone\n::set-output name=a::b\r\n##[group]x %0A::stop-commands::x",
    "terminal": "\x1b[31mred\x1b]8;;http://evil.example\x07link\x1b]8;;\x07\x1b[2J\x9b31m\x00\x07\b\x7f",
    "braces": "{0} {{1}} {{ config }} {% raw %} ${HOME} $(id) `id` $x^2$ \\[a\\](b)",
    "rtl": "\u202egnp.exe\u2066 \u200babc\u200f שלום مرحبا \ufeff\u2028next\u2029",
    "emoji": "🩺 é 漢字 \U0001f1e9\U0001f1ea a\u0301 \ufffe \ud800 \udcff",
    "starts": "- # 1. = + : * > \t    indented",
    "fence": "````\n`````` </details></summary> ````",
    "quotes": "\"'`\\ %25 %0A , : ; \\| \\\\| a\\\n",
    "only spaces": "   \t  ",
    "long": "ab |<`" * 30_000,
}
MANUALS = {
    code: Manual(code=code, name=name, detects=f"what {name} is.", matters="it costs weeks.", fix="mend it.")
    for code, name in {
        "HNG101": "call-does-not-return",
        "FWD201": "future-changes-output",
        "NAN101": "output-not-finite",
        "GRD401": "saved-tensor-overwritten",
        "SEL104": "duplicated-or-overlapping",
        "PRF401": "slower-than-its-floor",
    }.items()
}


def place(file: str = "", line: int = 0, module: str = "", name: str = "", function: str = "") -> Place:
    path = f"{REPOSITORY}/{file}" if file else ""
    return Place(module=module, module_class=name, file=path, line=line, function=function)


def finding(
    code: str, message: str, where: Place, control: str = "", also: tuple[str, ...] = (), **evidence
) -> Finding:
    repro = f"nsa-doctor run --select {code} --subject my_pkg.attn:make --seed 0"
    return Finding(code=code, message=message, where=where, control=control, also=also, repro=repro, evidence=evidence)


def result(code: str, name: str, verdict: Verdict, *findings: Finding, reason: str = "", **more) -> Result:
    return Result(code=code, name=name, verdict=verdict, findings=findings, reason=reason, **more)


HANG = finding(
    "HNG101",
    "a call at S=17 does not return within 30 s; it stands in a loop over tokens",
    place("my_pkg/attn.py", 88, "layers.0.attn", "SparseAttention", "_select"),
    control="returns at S=16 and 18",
    length=17,
    mode="train",
)
FUTURE = finding(
    "FWD201",
    "token 40 changes when tokens 64 to 127 do, by 0.31, at S=128",
    place("my_pkg/attn.py", 52, "layers.0.attn", "SparseAttention", "forward"),
    control="unchanged at S=64",
    also=("FWD202", "GRD103"),
    length=128,
    error=0.3125,
    token=40,
    has_gradient=True,
    bound=float("nan"),
)
NAMED = finding(
    "NAN101",
    "3 of 34 rows are not finite at S=17 in `gate|<b>@octocat</b>`",
    place("my_pkg/we ird,na:me%.py", 7, "layers.0.<script>alert(1)</script>", "Gate]]>\x1b[31m\u202e", "<lambda>"),
    num_nan=3,
    detail="first\n|second|\n```third",
    largest=float("inf"),
)
OVERWRITTEN = finding(
    "GRD401",
    "mul_ saved at my_pkg/gate.py:12 is overwritten at my_pkg/gate.py:14 🩺",
    place("my_pkg/gate.py", 14, "layers.1.gate", "Gate", "forward"),
    version=2,
)
RANGES = finding(
    "SEL104", "block 3 is chosen twice by token 200", place(module="layers.0.attn", name="SparseAttention")
)
SLOW = finding(
    "PRF401", "tokens per second is 6 at S=512, and the limit is 1000", place(), quantity="train", measured=6.0
)
RESULTS = (
    result("ENV102", "software-that-cannot-work-together", Verdict.PASS, seconds=0.004),
    result("HNG101", "call-does-not-return", Verdict.TIMEOUT, HANG, seconds=30.25),
    result("GRD401", "saved-tensor-overwritten", Verdict.FAIL, OVERWRITTEN, seconds=0.5),
    result("FWD201", "future-changes-output", Verdict.FAIL, FUTURE, seconds=1.5),
    result("FWD202", "prefix-changes", Verdict.FAIL, reason="seen beside FWD201, which may explain it"),
    result("NAN101", "output-not-finite", Verdict.FAIL, NAMED),
    result("SEL104", "duplicated-or-overlapping", Verdict.FAIL, RANGES),
    result("GRD101", "gradient-differs-from-derivative", Verdict.SKIP, reason="means nothing while NAN101 fails"),
    result("GAT101", "gate-all-zero", Verdict.SKIP, reason="it has no gate", is_required=False),
    result("DEC101", "decode-differs-from-prefill", Verdict.CRASH, reason="KeyError: '|x|'", seconds=0.1),
    result("PRF401", "slower-than-its-floor", Verdict.FAIL, SLOW),
)
CENSUS = Census(name="output", num_values=34, num_nan=3, num_inf=0, largest=float("inf"), num_rows=34, num_bad_rows=3)
TROUBLE = Trouble(
    kind="raised", message="ValueError: ]]> \x1b[31m", place=HANG.where, phase="forward", traceback="Traceback\n <b>"
)
MEASUREMENTS = (
    Measurement(
        point=Point(length=16), censuses=(replace(CENSUS, num_nan=0, largest=2.5),), seconds=0.01, peak_bytes=4096
    ),
    Measurement(point=Point(length=17, mode="no_grad"), censuses=(CENSUS,), seconds=float("nan"), notes=("one",)),
    Measurement(point=Point(length=18, dtype="bfloat16"), trouble=TROUBLE),
)


def examined() -> Report:
    """What `run` may say of a subject with several faults and of hostile names."""
    return Report(
        command="run",
        subject={
            "name": "my_pkg.attn:make",
            "description": "my_pkg.attn.SparseAttention",
            "input": "embeddings",
            "width": 64,
            "dtype": "float32",
            "options": ["--subject", "my_pkg.attn:make", "--input", "embeddings"],
            "identity": {"configuration_hash": "0123456789abcdef", "file": f"{REPOSITORY}/my_pkg/attn.py"},
        },
        options={"checks": ["FWD", "NAN101"], "profile": "quick", "device": "cpu", "seed": 0, "timeout_seconds": 30.0},
        environment={
            "nsa_doctor": "0.1.0",
            "python": "3.11.7",
            "torch": "2.13.0+cpu",
            "device": "cpu",
            "device_name": "2 threads",
            "repository": REPOSITORY,
        },
        results=RESULTS,
        measurements=MEASUREMENTS,
        notes=("not examined in float16: the subject does not run in it on cpu", "see | https://example.com & @team"),
        seconds=42.5,
    )


def held(
    title: str, unit: str, bound: str, measured: float | None, kept: LimitStatus, because: str, device: str = ""
) -> LimitResult:
    measure = title.replace(" ", "_")
    return LimitResult(
        measure=measure,
        title=title,
        unit=unit,
        bound=bound,
        measured=measured,
        kept=kept,
        because=because,
        device=device,
    )


def ruled() -> Report:
    """The same, held against a gate."""
    policy_verdict = PolicyVerdict(
        decision="NO-GO",
        gate="production",
        gate_digest="ab" * 32,
        why=("FWD201 token 40 changes when tokens 64 to 127 do", "DEC101: CRASH: KeyError: '|x|'"),
        required=(
            Required(code="FWD201", verdict="FAIL", because="nothing may see the future", stands="failed"),
            Required(
                code="DEC101", verdict="CRASH", because="it is served", stands="unknown", reason="KeyError: '|x|'"
            ),
            Required(code="ENV102", verdict="PASS", because="kernels must start", stands="passed"),
        ),
        limits=(
            held("speed", "tokens/s", "at least 1000", 6.0, "broken", "the bill"),
            held("loss ratio", "", "at most 0.9", 0.5, "kept", "it learns"),
            held("resumes", "", "at least 1", None, "not measured", "crashes happen"),
            held("speed", "tokens/s", "at least 9000", 6.0, "other device", "it is fast", "H200"),
        ),
        accepted=(Accepted(fingerprint=SLOW.fingerprint, code="PRF401", because="a CPU | is slow"),),
        baseline=Compared(report="old.json", new=(HANG.fingerprint,), fixed=("0" * 16,), unchanged=(SLOW.fingerprint,)),
        again="nsa-doctor go-no-go --policy production --subject my_pkg.attn:make",
        power=POWER,
    )
    return replace(examined(), command="go-no-go", verdict=policy_verdict, proof=PROOF)


POWER = Power(
    checks=9,
    calls=1234,
    lengths=(1, 2, 17, 2048),
    dtypes=("float64", "float32"),
    modes=("train", "eval"),
    batch_sizes=(1, 3),
    seeds=(0,),
    device="cpu",
    recall=(
        FamilyRecall(family="all", hits=9, of=10, low=0.596, high=0.982),
        FamilyRecall(family="FWD", hits=8, of=8, low=0.676, high=1.0),
        FamilyRecall(family="PRF", hits=0, of=0, low=0.0, high=1.0),
    ),
    doctor="0.1.0, commit abc1234",
    measured_on="2026-01-02",
    not_examined=("data", "gates (not offered)"),
    cut_short=("FWD209: not finished within 90 s",),
)


def fate(line: int, end: Fate, before: str, after: str, changed: str = "", by: str = "") -> MutantFate:
    return MutantFate(
        file="my_pkg/attn.py", line=line, kind="mask", before=before, after=after, fate=end, changed=changed, by=by
    )


PROOF = Proof(
    asked=4,
    seed=3,
    candidates=57,
    files=("my_pkg/attn.py",),
    lengths=(1, 2, 17),
    dtype="float32",
    modes=("train", "eval"),
    mutants=(
        fate(52, "noticed", "m = m.triu(1)", "m = m.triu(2)", "output at S=2 (train): by up to 0.5", "FWD201 token 1"),
        fate(53, "same", "x = x.contiguous()", "x = (x)"),
        fate(54, "missed", "s = q @ k / 8", "s = q @ k / 9", "output at S=2 (train): by up to 0.1"),
        fate(55, "unknown", "if a | b:", "if (not (a | b)):", "output at S=17 (eval): not finite", "FWD209: not run"),
        fate(60, "raises", "Linear(64, 192)", "Linear(64, 193)"),
    ),
    reason="interrupted",
    seconds=61.5,
    noticed_low=0.0615,
    noticed_high=0.7923,
)


_CHOSEN = {"fate", "verdict", "mode", "values", "dtype", "kind", "stands", "kept", "decision", "command", "repository"}


def filled(report: Report, fill: Callable[[str], str]) -> Report:
    """The report with its texts replaced, and fingerprints that fit them; what is one of a few words stays."""
    made = _filled(report, fill)
    if made.verdict is None:
        return made
    known = made.results[-1].findings[0].fingerprint
    accepted = tuple(replace(each, fingerprint=known) for each in made.verdict.accepted)
    return replace(made, verdict=replace(made.verdict, accepted=accepted))


def _filled(value: Any, fill: Callable[[str], str], name: str = "") -> Any:
    if isinstance(value, Enum) or name in _CHOSEN:
        return value if not is_dataclass(value) else _record(value, fill)
    if isinstance(value, str):
        return (f"{REPOSITORY}/{fill(value)}.py" if name == "file" else fill(value)) if value else value
    if is_dataclass(value):
        return _record(value, fill)
    if isinstance(value, dict):
        more = {fill("key"): fill("value")} if name == "evidence" else {}
        return {key: _filled(item, fill, str(key)) for key, item in value.items()} | more
    return type(value)(_filled(item, fill) for item in value) if isinstance(value, (tuple, list)) else value


def _record(value: Any, fill: Callable[[str], str]) -> Any:
    return replace(value, **{part.name: _filled(getattr(value, part.name), fill, part.name) for part in fields(value)})
