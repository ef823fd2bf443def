"""A second interpreter that makes the calls of a first one on the same subject, for the two to be compared."""

import json
import sys
from dataclasses import replace

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.own_nsa import let_ours_win
from nsa_doctor.core.replaced_sources import take_over


def main() -> None:
    """Answer the request of the second word into the folder of the first."""
    folder, words = sys.argv[1:3]
    del sys.argv[1:]
    request = json.loads(words)
    sys.path[:] = request["path"]
    take_over(folder)
    let_ours_win()
    from nsa_doctor.adapters.load import load_subject  # found where the first interpreter found it
    from nsa_doctor.probes.model.perform import Conditions
    from nsa_doctor.probes.model.second_interpreter import answer_request, write_failure
    from nsa_doctor.subject.request import SubjectRequest
    from nsa_doctor.worker.handlers import under

    names = request["names"]
    dtype, width = names.pop("dtype", None), names.pop("width", None)
    wanted = SubjectRequest(**names, width=int(width) if width else None, device=request["device"])
    subject = attempt(lambda: load_subject(wanted))
    if isinstance(subject, Caught) or subject.name != request["name"]:
        write_failure(subject.sentence if isinstance(subject, Caught) else "there it is another", folder)
        return
    conditions = Conditions(seed=request["seed"], device=request["device"])
    examined = replace(under(subject, conditions, "quick", dtype), options=())
    made = attempt(lambda: answer_request(examined, request, folder))
    if isinstance(made, Caught):
        write_failure(made.sentence, folder)
