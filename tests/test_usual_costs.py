"""What checks usually cost and find is read from reports, and written in a table that ships with the doctor."""

import json
from pathlib import Path
from typing import Any

import pytest

from nsa_doctor.core import registry, usual_costs
from tests import usual_costs as written


def report(seconds: float, verdict: str) -> dict[str, Any]:
    others = [{"code": f"XYZ{number}", "seconds": 0.01, "verdict": "PASS"} for number in range(100, 200)]
    return {"results": [{"code": "FWD201", "seconds": seconds, "verdict": verdict}, *others]}


def test_a_share_is_the_mean_of_reports_and_only_checks_that_there_are_have_one() -> None:
    assert written.table_of([report(1.0, "FAIL"), report(3.0, "PASS")]) == {"FWD201": (0.625, 1)}


def test_reports_are_read_from_files_and_others_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, short, broken = (tmp_path / f"{name}.json" for name in ("whole", "short", "broken"))
    whole.write_text(json.dumps(report(1.0, "FAIL")))
    short.write_text(json.dumps({"results": []}))
    broken.write_text("{")
    monkeypatch.setattr(written, "TABLE", tmp_path / "table.json")
    assert written.main([str(whole), str(short), str(broken), str(tmp_path / "none.json")]) is None
    assert json.loads((tmp_path / "table.json").read_text()) == {"reports": 1, "checks": {"FWD201": [0.5, 1]}}
    assert capsys.readouterr().err.count("is passed over") == 2
    assert written.main([str(short)]) == "none of these files is the report of a whole examination"


def test_the_table_that_ships_is_of_checks_that_there_are() -> None:
    table = usual_costs._table()
    assert len(table) > 150
    assert set(table) <= set(registry.entries())
    assert all(0 <= share < 1 and found >= 0 for share, found in table.values())
