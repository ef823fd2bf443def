"""What a report says of an examination: the subject, how it was examined, how each check ended, and its findings."""

from typing import Annotated

from pydantic import Field

from nsa_doctor.core import finding, measurement
from nsa_doctor.render.report_format.part import Listed, Maybe, Named, Number, OpenPart, Part, Scalar, optional


class Identity(OpenPart):
    """Which subject exactly, as far as it is known."""

    configuration_hash: str = optional("Hash of its configuration.")
    made_of: str = optional("Hash of classes, plain settings, and names, shapes and dtypes of all tensors.")
    sources: str = optional("Hash of the sources.")
    file: str = optional("The file of source that defines it.")


class Subject(OpenPart):
    """What was examined."""

    name: str = Field(description="How it is called on a command line, or by its author.")
    description: str = optional("What it is, in words.")
    input: str = optional("What it takes: embeddings or tokens.")
    width: Maybe[int] = optional("Dim of embeddings, or vocabulary of tokens.")
    spec: Listed[str] = optional("What it is declared to be; absent where nothing is.")
    dtype: str = optional("Dtype that it is examined in.")
    options: Listed[str] = optional("The words that name it on a command line.")
    identity: Identity = optional()


class Options(OpenPart):
    """How it was examined; which keys there are depends on the command."""

    lengths: Listed[int] = optional("Sequence lengths.")
    checks: Listed[str] = optional("Codes of checks, or their beginnings.")
    dtypes: Listed[str] = optional("Dtypes that it was measured in.")
    values: Listed[str] = optional("Kinds of input values.")
    targets: Listed[str] = optional("What was fuzzed.")
    profile: str = optional("How thoroughly checks were run: smoke, quick or full.")
    device: str = optional("Device that it was examined on.")
    dtype: Maybe[str] = optional("Dtype of the subject; null for its own.")
    seed: int = optional("Seed of weights and inputs.")
    boundaries: bool = optional("Whether lengths at which the geometry changes, and their neighbours, were added.")
    forward_only: bool = optional("Whether no gradient was computed.")


class Environment(OpenPart):
    """Software and hardware."""

    nsa_doctor: str = optional("Version of nsa-doctor.")
    python: str = optional("Version of Python.")
    torch: str = optional("Version of torch.")
    device: str = optional("Device, as torch names it.")
    device_name: str = optional("Device, as its maker names it.")
    repository: str = optional("The folder that file names in the report stand below.")


class Place(Part):
    """Where in the subject."""

    _record = measurement.Place
    module: str = Field(description="Dotted module path, empty for the subject itself.")
    module_class: str = Field(description="Class of the module.")
    file: str = Field(description="File of source, empty when none is known.")
    line: int = Field(description="Line of source, 0 when none is known.")
    function: str = Field(description="Function that holds the line.")
    library: str = optional("The line of a library that the line called, if one was at work there.")


class Finding(Part):
    """One thing that is wrong."""

    _record = finding.Finding
    message: str = Field(description="What is wrong, how much and where, in a sentence.")
    where: Place
    evidence: Named[Scalar] = Field(description="What was measured, by name.")
    control: str = Field(description="What was fine beside it.")
    repro: str = Field(description="One line to paste that shows it again.")
    code: str = Field(description="The check that it belongs to.")
    also: Listed[str] = Field(description="Other checks that saw the same cause.")
    fingerprint: str = Field(description="Stable over seeds, machines and shifted lines.")
    help: str = optional("Address of the page about the check; absent where there is none.")


class Examined(OpenPart):
    """How the check called the subject."""

    calls: int = optional("Number of calls.")
    lengths: Listed[int] = optional("Sequence lengths.")
    batch_sizes: Listed[int] = optional("Rows of a batch.")
    seeds: Listed[int] = optional("Seeds of weights and inputs.")
    dtypes: Listed[str] = optional("Dtypes of the input or the parameters.")
    modes: Listed[str] = optional("Modes: train, eval, no_grad.")


class Result(Part):
    """How one check ended; a SKIP that is not required does not apply to the subject."""

    _record = finding.Result
    code: str = Field(description="Code of the check, or of the family that it stands for.")
    name: str = Field(description="Name of the illness that it looks for.")
    verdict: Annotated[finding.Verdict, Field(strict=False)]
    findings: Listed[Finding] = Field(description="The first few of its findings.")
    reason: str = Field(description="Why it was skipped, crashed or ran out of time.")
    seconds: Number
    notes: Listed[str] = Field(description="What it saw that is not wrong by itself.")
    further: Listed[str] = optional("Fingerprints of findings beyond those in findings; absent when there are none.")
    examined: Examined = optional("How the check called the subject; absent when it did not.")
    is_required: bool = Field(description="Whether a SKIP stands in the way of a GO.")
