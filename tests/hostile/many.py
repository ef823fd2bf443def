"""Reads many files in one process that is held to the limits of the room: a line of JSON for each path on its input."""

import json
import sys
from dataclasses import asdict

from nsa_doctor.artifacts.checkpoint.limits import confine
from nsa_doctor.artifacts.checkpoint.reader import ReadRequest
from nsa_doctor.worker.checkpoint_main import answered

_SECONDS = 100.0
USUAL = {**asdict(ReadRequest(seconds=30.0)), "since": None}

if __name__ == "__main__":
    confine(_SECONDS)
    for line in sys.stdin:
        print(json.dumps(answered({**USUAL, "path": json.loads(line)})), flush=True)
