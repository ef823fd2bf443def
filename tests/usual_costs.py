"""What each check usually costs and finds: python -m tests.usual_costs REPORT.json ... writes it from such reports.

It is nsa_doctor/core/usual_costs.json, by which an examination of little time is ordered (core/usual_costs.py). The
reports are those of `nsa-doctor run --format json` of whole examinations of many different modules.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nsa_doctor.core import registry

TABLE = Path(__file__).parents[1] / "nsa_doctor" / "core" / "usual_costs.json"
FEWEST_RESULTS = 100  # of a whole examination


def main(paths: Sequence[str]) -> str | None:
    """Write the table of what these reports say; or why there is none."""
    reports = list(_whole(paths))
    if not reports:
        return "none of these files is the report of a whole examination"
    rows = ",\n".join(f"  {json.dumps(code)}: {json.dumps(row)}" for code, row in table_of(reports).items())
    TABLE.write_text(f'{{"reports": {len(reports)}, "checks": {{\n{rows}\n}}}}\n', encoding="utf-8")
    print(f"{TABLE.name}: from {len(reports)} reports")
    return None


def table_of(reports: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, int]]:
    """Of each check that there is: its mean share of the seconds of a report, and in how many of them it failed."""
    shares, found = defaultdict[str, list[float]](list), Counter[str]()
    for report in reports:
        results = report["results"]
        whole = sum(result["seconds"] for result in results) or 1.0
        for result in results:
            shares[result["code"]].append(result["seconds"] / whole)
            found[result["code"]] += result["verdict"] == "FAIL"
    return {
        code: (round(sum(shares[code]) / len(shares[code]), 6), found[code])
        for code in registry.entries()
        if code in shares
    }


def _whole(paths: Iterable[str]) -> Iterator[dict[str, Any]]:
    for path in paths:
        try:
            report = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            print(f"{path} is passed over: {error}", file=sys.stderr)
            continue
        if isinstance(report, dict) and len(report.get("results", ())) >= FEWEST_RESULTS:
            yield report


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
