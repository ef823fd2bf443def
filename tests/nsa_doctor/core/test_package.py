"""Which files are the doctor's own, and what is made of a line in one that is not though it is installed among them."""

from nsa_doctor.artifacts.data import examine
from nsa_doctor.artifacts.data.request import DataRequest
from nsa_doctor.core import registry
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.facts import Fact
from nsa_doctor.core.package import is_doctors, own_file
from nsa_doctor.isolation import worker_process
from nsa_doctor.isolation.failures import CrashReport, WorkerHungError
from nsa_doctor.probes.model.own_error import is_own_error

CASE, OWN = own_file("regressions", "r998_some_symptom.py"), own_file("checks", "dat", "dat104_loader_hangs.py")
DUMP = f"""Current thread 0x01 (most recent call first):
  File "{OWN}", line 9 in waits
  File "{CASE}", line 7 in stalls
"""


def test_a_case_is_not_the_doctors_where_it_is_installed() -> None:
    assert [is_doctors(file) for file in (OWN, CASE, "/home/me/model.py")] == [True, False, False]


def test_a_child_that_stands_in_a_case_is_not_at_the_doctors_own_work() -> None:
    seen = [{"phase": "", "place": {"file": file}} for file in (own_file("core", "registry.py"), CASE)]
    assert [worker_process._is_own_work(each) for each in seen] == [True, False]


def test_what_a_case_raises_is_raised_by_the_subject() -> None:
    failed = own_file("core", "registry.py"), CASE
    errors = [attempt(lambda file=file: eval(compile("{}['a']", file, "eval"))) for file in failed]
    assert [is_own_error(each.error) for each in errors if isinstance(each, Caught)] == [True, False]


def test_a_line_of_a_case_where_data_do_not_come_is_named() -> None:
    code = registry.answering(Fact.NO_BATCHES).manual.code
    (result,) = examine._failed(DataRequest(codes=(code,)), WorkerHungError(1.0, CrashReport(dump=DUMP)))
    assert (result.findings[0].where.file, result.findings[0].where.function) == (CASE, "stalls")
