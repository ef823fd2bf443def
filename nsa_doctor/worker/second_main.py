"""A second interpreter that makes the calls of a first one on the same subject, for the two to be compared."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import top_package
from nsa_doctor.core.own_nsa import let_ours_win
from nsa_doctor.core.replaced_sources import take_over


def main() -> None:
    """Answer the request in the folder that the last word names into that folder."""
    folder = sys.argv.pop()
    request = json.loads((Path(folder) / "request.json").read_text(encoding="utf-8"))
    sys.path[:] = request["path"]
    take_over(folder)
    let_ours_win()
    from nsa_doctor.adapters.input_discovery import is_lazy
    from nsa_doctor.adapters.load import load_subject  # found where the first interpreter found it
    from nsa_doctor.probes.gradients.gradient_of_call import departure_from
    from nsa_doctor.probes.model.perform import Conditions
    from nsa_doctor.probes.model.second_interpreter import There, answer_request, begin, write_failure
    from nsa_doctor.subject.request import SubjectRequest
    from nsa_doctor.worker.handlers import as_found_out, under

    names = request["names"]
    dtype, width = names.pop("dtype", None), names.pop("width", None)
    wanted = SubjectRequest(**names, width=int(width) if width else None, device=request["device"])
    made = begin(request, top_package(wanted.spec), folder)
    modules: list[Any] = []

    def begun(module: Any) -> None:
        modules.append(module)
        made(module)

    subject = attempt(lambda: load_subject(wanted, made=begun))
    if isinstance(subject, Caught) or subject.name != request["name"]:
        write_failure(subject.sentence if isinstance(subject, Caught) else "there it is another", folder)
        return
    conditions = Conditions(seed=request["seed"], device=request["device"])
    examined = under(as_found_out(subject, request["found_out"]), conditions, "quick", dtype)
    examined = replace(examined, options=())
    called = next((module for module in modules if not is_lazy(module)), None)
    there = There(called, dtype, made, departure_from)
    answered = attempt(lambda: answer_request(examined, request, folder, there))
    if isinstance(answered, Caught):
        write_failure(answered.sentence, folder)
