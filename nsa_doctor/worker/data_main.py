"""The room in which a source of batches is opened: a process of its own, where it may hang, print or die."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from nsa_doctor.artifacts.data.request import DataRequest
from nsa_doctor.artifacts.data.subject import DataSubject
from nsa_doctor.artifacts.data.waiting import Caller, TooLate
from nsa_doctor.artifacts.judging import judged
from nsa_doctor.core import registry
from nsa_doctor.core.errors import Caught
from nsa_doctor.core.frames import FrameFilter, top_package
from nsa_doctor.core.identity import digest

if TYPE_CHECKING:
    from nsa.config import RunConfig
    from nsa_doctor.worker.main import Channel

_DEALING = ("seed", "seq_len", "batch_size", "accumulate_grad_batches")
_IMPORT_SECONDS = 120.0
_LEAST_IMPORT_SECONDS = 20.0  # a limit for batches is none for libraries


def open_room(channel: "Channel") -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What answers a request for one source."""
    channel.keep_errors()  # with the stacks of the processes that a loader has started
    channel.tick()
    return lambda request: answered(DataRequest(**request), channel.tell)


def answered(request: DataRequest, tell: Callable[[str], None]) -> dict[str, Any]:
    """The end of every check and what is known of the source, or how the request cannot be met: `usage`."""
    from nsa.strict import ConfigError
    from nsa_doctor.subject.contract import SubjectUnusableError

    seconds = max(request.seconds or _IMPORT_SECONDS, _LEAST_IMPORT_SECONDS)
    caller = Caller(FrameFilter(top_package(request.spec)))
    subject = caller.call(lambda: subject_of(request), seconds)
    caller.end()
    if isinstance(subject, TooLate):
        return {"usage": f"{request.spec} cannot be imported within {seconds:g} s: it waits at {subject.where}"}
    if isinstance(subject, Caught):
        if isinstance(subject.error, (ConfigError, SubjectUnusableError)):
            return {"usage": f"{'' if request.spec else '--config '}{subject.error}"}
        raise subject.error
    subject = replace(subject, listen=tell)
    entries = [entry for code, entry in registry.entries().items() if code in request.codes]
    return {
        "results": [asdict(result) for result in judged(entries, subject)],
        "subject": {
            "name": subject.name,
            "description": subject.description,
            "options": list(request.words),
            "identity": _identity(request),
        },
        "expected": {
            "seq_len": subject.seq_len,
            "vocab_size": subject.vocab_size,
            "batch_size": subject.batch_size,
            "limit_seconds": subject.limit_seconds,
        },
    }


def _identity(request: DataRequest) -> dict[str, Any]:
    """Which data exactly: the model it is for, by the same hash as a run or a module has, and all that deals it out."""
    from nsa_doctor.probes.model.identity import sources_of

    identity: dict[str, Any] = {}
    if request.config is not None:
        config = _configuration(request.config, request.changes)
        dealt = config.train.model_dump(mode="json", include=set(_DEALING))
        identity["configuration_hash"] = digest(config.model.model_dump(mode="json"))
        identity["data_hash"] = digest({"data": config.data.model_dump(mode="json"), "train": dealt})
    if request.spec is not None:
        identity["sources"] = sources_of(top_package(request.spec))
    return identity


def _configuration(name: str, changes: Sequence[str]) -> "RunConfig":
    from nsa.config import load_config, with_changes

    return with_changes(load_config(name), changes) if changes else load_config(name)


def subject_of(request: DataRequest) -> DataSubject:
    """The source asked for; raises ConfigError and SubjectUnusableError."""
    from nsa_doctor.artifacts.data.sources import of_config, of_factory

    subject: DataSubject | None = None
    if request.config is not None:
        subject = of_config(_configuration(request.config, request.changes), request.seconds)
    if request.spec is not None:
        subject = of_factory(request.spec, subject)
    assert subject is not None
    options: dict[str, Any] = {
        "targets": request.targets,
        "seq_len": request.seq_len,
        "vocab_size": request.vocab_size,
        "batch_size": request.batch_size,
        "limit_seconds": request.seconds,
    }
    return replace(
        subject,
        num_batches=request.num_batches,
        num_ranks=request.num_ranks,
        options=request.words,
        **{name: value for name, value in options.items() if value is not None},
    )
