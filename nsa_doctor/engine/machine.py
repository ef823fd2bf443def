"""`nsa-doctor env`: the machine, the software, the flags and what they come to, as a block to paste into an issue."""

from dataclasses import asdict
from typing import Any

from nsa_doctor.core.environment import Environment, misfits
from nsa_doctor.core.errors import InternalError
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.measurement import Trouble
from nsa_doctor.isolation.supervisor import Supervisor


def describe(examination_request: ExaminationRequest) -> dict[str, Any]:
    """Facts, flags, routes and misfits; raises InternalError when the machine cannot be asked."""
    supervisor = Supervisor(examination_request)
    try:
        troubles = supervisor.load()
        answer = supervisor.describe_machine()
    finally:
        supervisor.close()
    if isinstance(answer, Trouble):
        raise InternalError(f"the machine cannot be asked: {answer.message}", answer.traceback)
    facts = Environment.from_json(answer["facts"])
    messages = [misfit.message for misfit in misfits(facts)]
    messages += [measurement.trouble.message for measurement in troubles if measurement.trouble]
    return {"facts": asdict(facts), "flags": answer["flags"], "routes": answer["routes"], "misfits": messages}


def block(description: dict[str, Any]) -> str:
    """Plain lines: name, value."""
    facts = description["facts"]
    cuda = ".".join(map(str, facts["torch_cuda"])) if facts["torch_cuda"] else "none"
    rows = [
        ("python", f"{facts['python']} on {facts['platform']}"),
        ("torch", f"{facts['torch']} (CUDA {cuda})"),
        *((name, version) for name, version in facts["packages"].items()),
        ("driver", facts["driver"] or "none"),
        *(
            ("device", f"{gpu['name']}, compute capability {'.'.join(map(str, gpu['capability']))}")
            for gpu in facts["gpus"]
        ),
        *(("flag", f"{name}={'unset' if value is None else value}") for name, value in description["flags"].items()),
    ]
    lines = [f"{name:<12}{value}" for name, value in rows]
    for route in description["routes"]:
        chosen = f"{route['effective']}, {route['why']}"
        lines.append(f"{'route':<12}{route['branch']} ({route['dtype']} on {route['device']}): {chosen}")
    lines += (
        [f"{'effective':<12}{name}={value}" for name, value in description["routes"][-1]["fa2"].items()]
        if description["routes"]
        else []
    )
    lines += [f"{'misfit':<12}{message}" for message in description["misfits"]] or [f"{'misfit':<12}none seen"]
    return "\n".join(lines) + "\n"
