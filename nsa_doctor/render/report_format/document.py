"""A whole report: what it holds beside its parts, and the JSON Schema of it all."""

import json
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from nsa_doctor.core import finding
from nsa_doctor.core.policy_verdict import DecisionWord
from nsa_doctor.render.json import VERSION, Format, Version
from nsa_doctor.render.report_format.examination import Environment, Options, Result, Subject
from nsa_doctor.render.report_format.gates import Gate
from nsa_doctor.render.report_format.measured import Measurement, Run, Throughput
from nsa_doctor.render.report_format.part import Listed, Number, OtherKindError, Part, optional
from nsa_doctor.render.report_format.ruling import PolicyVerdict, Proof


def _no_truth(value: Any) -> Any:
    """The value; `true` is no version, though Python takes it for 1."""
    if type(value) is not int:
        raise OtherKindError(str(VERSION))
    return value


class Document(Part):
    """What nsa-doctor writes with --format json, and what nsa-doctor render reads.

    A key that goes away or changes its meaning makes another version. JSON has no words for numbers that are not
    finite: the strings NaN, Infinity and -Infinity stand for them. It is nested at most a few dozen deep.
    """

    model_config = ConfigDict(title=f"Report of nsa-doctor, version {VERSION}")
    _record = finding.Report
    format: Format
    version: Annotated[Version, BeforeValidator(_no_truth)]
    command: str = Field(description="The command that wrote the report: run, sweep, fuzz, ...")
    decision: DecisionWord = Field(description="What may be concluded: only a full pass is a GO.")
    interrupted: bool = Field(description="Whether a person or a signal ended the work early.")
    seconds: Number
    subject: Subject
    options: Options
    environment: Environment
    results: Listed[Result] = Field(description="One for each check.")
    measurements: Listed[Measurement] = Field(description="One for each point of a sweep.")
    notes: Listed[str] = Field(description="What a reader should know of the examination.")
    throughput: Throughput = optional()
    run: Run = optional()
    gates: Listed[Gate] = optional("Every gate of the checkpoints that were read.")
    verdict: PolicyVerdict = optional()
    proof: Proof = optional()


class _Generate(GenerateJsonSchema):
    """Without titles that repeat the key, and without defaults: what is absent stands for nothing."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: Any) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])


def json_schema() -> str:
    """The JSON Schema of a report."""
    made = Document.model_json_schema(schema_generator=_Generate)
    top = {"$schema": _Generate.schema_dialect, "$id": f"urn:nsa-doctor:report:{VERSION}"}
    ordered = ("title", "description", "type", "properties", "required", "additionalProperties", "$defs")
    assert set(ordered) == set(made)
    return json.dumps({**top, **{key: made[key] for key in ordered}}, indent=2) + "\n"
