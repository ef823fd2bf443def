"""Where the child examines one subject: load it once, then measure, diagnose and check it as asked."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nsa_doctor.adapters.answer_shapes import answering
from nsa_doctor.adapters.any_module import libraries_of, packages_of
from nsa_doctor.adapters.load import load_subject
from nsa_doctor.adapters.refusals import filled_up
from nsa_doctor.core import registry
from nsa_doctor.core.allowance import Allowance
from nsa_doctor.core.check import Profile
from nsa_doctor.core.errors import Caught, SubjectFailedError, attempt
from nsa_doctor.core.finding import Result
from nsa_doctor.core.frames import FrameFilter, top_package
from nsa_doctor.core.identity import digest
from nsa_doctor.core.lengths import boundary_lengths, spread_lengths
from nsa_doctor.core.measurement import Diagnosis, Measurement, Point, to_json
from nsa_doctor.core.pace import Pace
from nsa_doctor.core.replaced_sources import replace_sources
from nsa_doctor.core.seams import SEAMS
from nsa_doctor.core.text import counted
from nsa_doctor.probes.hooks.places import module_code
from nsa_doctor.probes.hooks.stack_sampler import StackSampler
from nsa_doctor.probes.model.environment import environment, flags, routes
from nsa_doctor.probes.model.heartbeat import made_known, watched
from nsa_doctor.probes.model.identity import file_of, made_of, shapes_of, sources_of
from nsa_doctor.probes.model.measure import measure, trouble_of
from nsa_doctor.probes.model.perform import Conditions
from nsa_doctor.probes.model.state import cast, preserved_state, seed_everything
from nsa_doctor.probes.model.tally import Tally, tallied
from nsa_doctor.probes.numerics.nonfinite_origin import diagnose
from nsa_doctor.probes.numerics.raised_origin import locate_raise
from nsa_doctor.subject.contract import Subject, SubjectUnusableError
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.answer_line import sendable
from nsa_doctor.worker.mutation import effect_of, reached_by
from nsa_doctor.worker.run_check import run_check

if TYPE_CHECKING:
    from nsa_doctor.worker.main import Channel

_MOST_CODE_RANGES = 2000
_FOUND_OUT = ("max_length", "longest", "call_seconds", "whole_multiples_of", "answer")
_MOST_SPREAD = 64
_LOCATING_SECONDS = 30.0  # of all checks of one child, on places of what their calls did on the way


def open_room(channel: "Channel") -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What answers the requests about one subject, which the channel watches."""
    handler = RequestHandler(channel.send)
    channel.watch(handler.sampler)
    return handler.answer


class RequestHandler:
    """Answers the parent's requests; `send` reports what is under way."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._subject: Subject | None = None
        self._conditions = Conditions()
        self._modules_before = frozenset(sys.modules)
        self._package: tuple[str, ...] = ()
        self._locating = Allowance(_LOCATING_SECONDS)
        self.sampler = StackSampler()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """What a request asks for, under one name."""
        match request["do"]:
            case "load":
                return self.load(request)
            case "measure":
                return {"measured": to_json(self.measure(Point(**request["point"])))}
            case "diagnose":
                return {"diagnosed": to_json(self.diagnose(Point(**request["point"]), request["raises"]))}
            case "check":
                return {"checked": sendable(self.check(**_of_check(request)))}
            case "fuzz":
                return {"fuzzed": self.fuzz(request["case"])}
            case "time":
                return {"timed": self.time(request["length"], request["repeats"])}
            case "time shares":
                return {"timed": self.time_shares(request["length"])}
            case "reached":
                return {"reached": self.reached(request["lengths"])}
            case "effect":
                return {"effect": self.effect(request["file"], request["lengths"])}
            case "describe machine":
                return {"machine": self.describe_machine()}
            case other:
                raise ValueError(f"request must be one that a supervisor makes, got {other!r}")

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Load a subject: its facts, what is wrong with the request (`usage`), or what it did instead (`trouble`)."""
        replace_sources(request.get("replaced", {}))
        conditions = Conditions(**request["conditions"])
        if conditions.device == "cuda" and not torch.cuda.is_available():
            return {"usage": "device cuda is not there: torch sees no CUDA device; use --device cpu"}
        if request["threads"]:
            torch.set_num_threads(request["threads"])
        wanted = SubjectRequest(
            **{**request["subject"], **{name: tuple(request["subject"][name]) for name in ("lengths", "declared")}},
            device=conditions.device,
            explore=request["explore"],
            avoid=tuple(request["avoid"]),
            profile=request["profile"],
        )
        package = self._package = top_package(wanted.spec)
        self.sampler.frames = FrameFilter(package)
        with preserved_state():
            try:
                asking = lambda length: self._send({"event": "asking", "length": length})  # noqa: E731
                subject = load_subject(wanted, asking, lambda module: self._made(module, package))
            except SubjectUnusableError as error:
                return {"usage": str(error)}
            except SubjectFailedError as failure:
                return {"trouble": to_json(trouble_of(failure, package))}
        subject = as_found_out(subject, request["found_out"])
        self.sampler.frames = FrameFilter((*package, *subject.packages))
        pace = Pace.of(subject.call_seconds, request["profile"])
        profile: Profile = request["profile"] if pace is None else "smoke"
        examined = under(made_known(subject, self.sampler.know), conditions, profile, request["dtype"])
        examined = replace(examined, timeout=request["making_seconds"])
        self._subject = replace(examined, lengths=wanted.lengths) if request["are_all_lengths"] else examined
        self._conditions = conditions
        _warm_up(conditions.device)
        return {"loaded": _facts(self._subject, conditions, request["boundaries_up_to"])}

    def _made(self, module: nn.Module, package: tuple[str, ...]) -> None:
        """Tell the parent whose code is whose before any of it is called, for it may be the last that is heard."""
        self.sampler.frames = FrameFilter((*package, *packages_of(module)))
        self.sampler.know(module)
        self._send({"event": "made", "code": module_code(module)[:_MOST_CODE_RANGES]})

    def measure(self, point: Point) -> Measurement:
        """Measure the loaded subject."""
        assert self._subject is not None
        return measure(self._subject, point, self._conditions)

    def diagnose(self, point: Point, raises: bool) -> Diagnosis:
        """Trace the loaded subject."""
        assert self._subject is not None
        return (locate_raise if raises else diagnose)(self._subject, point, self._conditions)

    def check(self, code: str, planted: bool, avoid: Sequence[int], left: Mapping[str, Any] | None) -> Result:
        """Run one check on the loaded subject, or on the faulty one that the check itself plants.

        Where only these modes and lengths are `left`, nothing else of it is examined.
        Every call into the subject is an event; lengths to `avoid` are known to hang or to end the process.
        """
        assert self._subject is not None
        check = registry.load(code)
        subject = check.planted(self._subject) if planted else self._subject
        if left is not None:
            subject = replace(subject, modes=tuple(left["modes"]), max_length=left["max_length"])
        beat = lambda length: self._send({"event": "calling", "length": length})  # noqa: E731
        tally = Tally()
        result = run_check(check, tallied(watched(subject, beat, frozenset(avoid)), tally), self._locating)
        return replace(result, examined=tally.to_json())

    def time(self, length: int, repeats: int) -> dict[str, Any]:
        """Time the loaded subject at one length; its `trouble` when it raises."""
        from nsa_doctor.probes.cost.throughput import throughput

        return self._timed(lambda subject: throughput(subject, length, repeats))

    def time_shares(self, length: int) -> dict[str, Any]:
        """Who takes the time of a pass of the loaded subject."""
        from nsa_doctor.probes.cost.throughput import time_shares

        return self._timed(lambda subject: time_shares(subject, length))

    def describe_machine(self) -> dict[str, Any]:
        """Facts about this machine, the flags as they are set, and what serves each branch."""
        return {"facts": asdict(environment()), "flags": flags(), "routes": routes(self._conditions.device)}

    def reached(self, lengths: Sequence[int]) -> dict[str, Any]:
        """The lines of the subject's own sources that it reaches at these lengths, by file."""
        assert self._subject is not None
        return reached_by(self._subject, lengths, self._package, self._modules_before, self._calling)

    def effect(self, file: str, lengths: Sequence[int] | None) -> dict[str, Any]:
        """Write down what the subject gives at these lengths; without any, what differs from what was written."""
        assert self._subject is not None
        return effect_of(self._subject, file, lengths, self._calling)

    def _calling(self, length: int) -> None:
        self._send({"event": "calling", "length": length})

    def _timed(self, call: Callable[[Subject], dict[str, Any]]) -> dict[str, Any]:
        assert self._subject is not None
        with preserved_state():
            try:
                return call(self._subject)
            except SubjectFailedError as failure:
                return {"trouble": to_json(trouble_of(failure, self._subject.packages))}

    def fuzz(self, case: str | None) -> dict[str, Any]:
        """Try one case on the loaded subject; without one, say what it offers to be tried."""
        from nsa_doctor.fuzz.cases import read_case  # fuzzing alone needs these
        from nsa_doctor.fuzz.properties.examine import examine, offers

        assert self._subject is not None
        return offers(self._subject) if case is None else examine(read_case(case), self._subject).to_json()


def _of_check(request: Mapping[str, Any]) -> dict[str, Any]:
    return {name: request[name] for name in ("code", "planted", "avoid", "left")}


def under(subject: Subject, conditions: Conditions, profile: Profile, dtype: str | None) -> Subject:
    """The subject as this request wants it examined."""
    examined = replace(subject, seed=conditions.seed, device=conditions.device, profile=profile)
    if dtype is None or dtype == subject.dtype:
        return examined
    build = subject.build
    options = (*subject.options, "--dtype", dtype)
    return replace(examined, dtype=dtype, options=options, build=lambda seed: cast(build(seed), getattr(torch, dtype)))


def as_found_out(subject: Subject, found: Mapping[str, Any]) -> Subject:
    """The subject as a process before this one found it, whose trials are not made again."""
    known = {name: value for name, value in found.items() if value is not None}
    multiple, answer = known.pop("whole_multiples_of", 1), known.pop("answer", None)
    if "call_seconds" in known:
        known["call_seconds"] = tuple(tuple(each) for each in known["call_seconds"])
    subject = replace(subject, **known)
    if answer is not None and subject.answer is None:
        subject = answering(subject, answer[0], tuple(answer[1]))
    return subject if subject.whole_multiples_of > 1 else filled_up(subject, multiple)


def _facts(subject: Subject, conditions: Conditions, boundaries_up_to: int | None) -> dict[str, Any]:
    limit = boundaries_up_to
    with preserved_state():
        seed_everything(conditions.seed)
        module = attempt(lambda: subject.build(conditions.seed))
    return {
        "name": subject.name,
        "description": subject.description,
        "input": subject.input,
        "width": subject.width,
        "spec": subject.spec,
        "dtype": subject.dtype,
        "options": subject.options,
        "modes": subject.modes,
        "found_out": {name: getattr(subject, name) for name in _FOUND_OUT},
        "max_length": subject.max_length,
        "seen": [to_json(each) for each in subject.seen],
        "notes": subject.notes,
        "seams": [name for name in SEAMS if subject.offers(name)],
        "boundaries": [] if limit is None else boundary_lengths(subject.geometry, limit),
        "lengths": subject.lengths,
        "spread": spread_lengths(subject.geometry, subject.max_length, _MOST_SPREAD),
        "identity": _identity(subject, None if isinstance(module, Caught) else module),
        "parameters": {} if isinstance(module, Caught) else shapes_of(module),
        "code": [] if isinstance(module, Caught) else module_code(module)[:_MOST_CODE_RANGES],
        "environment": _environment(conditions),
    }


def _identity(subject: Subject, module: torch.nn.Module | None) -> dict[str, Any]:
    """Which subject exactly, as far as its process can tell."""
    configuration = dict(subject.configuration)
    made = "" if module is None else made_of(module)
    packages = (*subject.packages, *(() if module is None else libraries_of(module)))
    packages = tuple(dict.fromkeys(packages))
    return {
        "configuration": configuration,
        "configuration_hash": digest(configuration) if configuration else made,
        "made_of": made,
        "sources": sources_of(packages),
        "file": "" if module is None else file_of(module),
        "packages": packages,
        "flags": {name: value for name, value in flags().items() if value is not None},
    }


def _environment(conditions: Conditions) -> dict[str, Any]:
    device = torch.cuda.get_device_name() if conditions.device == "cuda" else counted(torch.get_num_threads(), "thread")
    return {"torch": str(torch.__version__), "device": conditions.device, "device_name": device}


def _warm_up(device: str) -> None:
    """Load torch's libraries, so that the first length measured does not pay for them."""
    x = torch.randn(1, 1, 32, 32, device=device, requires_grad=True)
    y = torch.nn.functional.scaled_dot_product_attention(x, x @ x, x, is_causal=True)
    y.softmax(-1).sum().backward()
