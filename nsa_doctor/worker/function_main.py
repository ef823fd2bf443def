"""The room in which a function is examined: load it once, then answer check by check."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch

from nsa_doctor.adapters.functions.load_function import FunctionRequest, load_function
from nsa_doctor.artifacts.judging import judge
from nsa_doctor.core import registry
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.facts import DEVICE_LOST
from nsa_doctor.core.finding import Finding, Note, Result, Verdict
from nsa_doctor.core.frames import FrameFilter, top_package
from nsa_doctor.core.identity import digest
from nsa_doctor.core.replaced_sources import replace_sources
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import counted
from nsa_doctor.probes.functions.calling import DeviceLostError
from nsa_doctor.probes.hooks.phase import under_way
from nsa_doctor.probes.hooks.stack_sampler import StackSampler
from nsa_doctor.probes.model.identity import sources_of
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.subject.contract import SubjectUnusableError
from nsa_doctor.subject.function import FunctionSubject, Shape
from nsa_doctor.worker.answer_line import sendable

if TYPE_CHECKING:
    from nsa_doctor.worker.main import Channel

_WITHOUT_TRUTH = (
    "masks and outputs were not compared, for nothing says what is right: --spec causal, full or window=W does, "
    "or --reference package.module:function"
)


def open_room(channel: "Channel") -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What answers the requests about one function, whose calls the channel watches."""
    handler = FunctionHandler(channel.send)
    channel.watch(handler.sampler)
    return handler.answer


class FunctionHandler:
    """Answers the parent's requests; `send` reports each call that begins."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._subject: FunctionSubject | None = None
        self._shapes: Counter[Shape] = Counter()
        self._lost: list[Exception] = []
        self._reported: list[Finding | Note] = []
        self.sampler = StackSampler()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """What a request asks for, under one name."""
        match request["do"]:
            case "load":
                return self.load(request)
            case "check":
                return {"checked": sendable(self._check(request["code"], request["planted"]))}
            case other:
                raise ValueError(f"request must be one that a supervisor makes of a function, got {other!r}")

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Load a function: its facts, or what is wrong with the request (`usage`)."""
        replace_sources(request.get("replaced", {}))
        conditions, named = request["conditions"], request["subject"]
        if conditions["device"] == "cuda" and not torch.cuda.is_available():
            return {"usage": "device cuda is not there: torch sees no CUDA device; use --device cpu"}
        if request["threads"]:
            torch.set_num_threads(request["threads"])
        self.sampler.frames = FrameFilter(top_package(named["spec"]))
        asked = FunctionRequest(
            subject=named["spec"],
            like=named["like"],
            spec=",".join(named["declared"]) or None,
            reference=named["reference"],
            inputs=named["inputs"],
            dtype=request["dtype"],
            device=conditions["device"],
            seed=conditions["seed"],
            profile=request["profile"],
            timeout=request["making_seconds"],
        )
        try:
            with preserved_state(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                subject = load_function(asked, lose=self._lost.append, wait=under_way)
        except SubjectUnusableError as error:
            return {"usage": str(error)}
        self._subject = replace(subject, beat=self._called)
        return {"loaded": _facts(subject)}

    def _judged(self, check: Check, subject: FunctionSubject) -> Result:
        with preserved_state(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return judge(replace(check, run=self._reporting(check)), subject)

    def _reporting(self, check: Check) -> Callable[[Any], Iterator[Finding | Note]]:
        """What the check runs, each finding kept as it comes: the device may be lost before the last."""

        def run(subject: FunctionSubject) -> Iterator[Finding | Note]:
            for item in check.run(subject):
                self._reported.append(item)
                yield item

        return run

    def _called(self, shape: Shape) -> None:
        self._shapes[shape] += 1
        self._send({"event": "calling", "length": shape.keys})

    def _check(self, code: str, planted: bool) -> Result:
        subject = self._subject
        assert subject is not None
        self._shapes.clear()
        self._reported.clear()
        check = registry.load(code)
        ended = attempt(lambda: self._judged(check, check.planted(subject) if planted else subject))
        if self._lost:
            return _lost(self._lost[0], check, subject, self._reported)
        if isinstance(ended, Caught):
            raise ended.error
        result = ended
        examined = {
            "calls": self._shapes.total(),
            "lengths": sorted({shape.keys for shape in self._shapes}),
            "batch_sizes": sorted({shape.batch for shape in self._shapes}),
            "dtypes": [subject.dtype],
            "modes": [],
            "seeds": [subject.seed],
        }
        return replace(result, examined=examined if self._shapes else {})


def _lost(lost: Exception, check: Check, subject: FunctionSubject, reported: Sequence[Finding | Note]) -> Result:
    """The end of a check whose call the device did not outlive: that call, and what it had found by then."""
    manual = check.manual
    before = tuple(replace(each, code=manual.code) for each in reported if isinstance(each, Finding))
    notes = tuple(str(each) for each in reported if isinstance(each, Note))
    finding = Finding(
        code=manual.code,
        message=f"{lost}, after which the device serves the process no more",
        where=lost.place if isinstance(lost, DeviceLostError) else subject.place,
        evidence={"kind": DEVICE_LOST},
        repro=command_for(subject, manual.code),
    )
    result = Result(code=manual.code, name=manual.name, verdict=Verdict.FAIL, notes=notes)
    return result.with_findings((finding, *before))


def _facts(subject: FunctionSubject) -> dict[str, Any]:
    device = torch.cuda.get_device_name() if subject.device == "cuda" else counted(torch.get_num_threads(), "thread")
    configuration = {"like": subject.convention.name, "spec": list(subject.spec.words)}
    return {
        "name": subject.name,
        "description": f"a function, called like {subject.convention.name}",
        "spec": subject.spec.words,
        "dtype": subject.dtype,
        "options": subject.options,
        "place": asdict(subject.place),
        "max_length": None,
        "notes": () if subject.has_truth else (_WITHOUT_TRUTH,),
        "seams": [],
        "lengths": (),
        "identity": {
            "configuration": configuration,
            "configuration_hash": digest(configuration),
            "sources": sources_of(subject.packages),
            "file": subject.place.file,
            "packages": subject.packages,
            "flags": {},
        },
        "environment": {"torch": str(torch.__version__), "device": subject.device, "device_name": device},
    }
