"""ENV101 routing-disagrees

Detects: routing that does not do what the flags say: flash-attn for a branch although NSA_USE_FA2=0 forbids it, none
under NSA_USE_FA2=1 where it serves without the flag, or a summary that contradicts its branches.
Matters: the run uses another kernel than the one that was tested, and a bug hunt looks at the wrong code.
Fix: read the flag in one place, and let every branch ask there.

Example:
    # faulty
    attend = flash_attn_func if flash_is_installed else reference  # in one branch, which never asks for NSA_USE_FA2
    # correct
    attend = flash_attn_func if flash_is_installed and flags.use_fa2 else reference  # in every branch alike
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.subject.contract import Subject

_FLAG = "NSA_USE_FA2"


def run(subject: Subject) -> Iterator[Finding]:
    routes = subject.routes
    assert routes is not None
    forbidden, asked, unset = ({**routes(flags)} for flags in ({_FLAG: "0"}, {_FLAG: "1"}, {}))
    ignored = sorted(name for name, serves in forbidden.items() if serves)
    refused = sorted(name for name, serves in unset.items() if serves and not asked.get(name, False))
    if ignored:
        yield _finding(subject, routes, f"{_FLAG}=0 forbids flash-attn, and {_are(ignored)} effective", forbidden)
    if refused:
        yield _finding(
            subject, routes, f"{_FLAG}=1 asks for flash-attn, and {_are(refused)} effective only without", asked
        )
    for word, table in (("0", forbidden), ("1", asked), ("unset", unset)):
        for name in sorted(table):
            others = [other for other in table if other != name and "all" not in other.split("_")]
            if "all" in name.split("_") and others and table[name] != all(table[other] for other in others):
                listing = ", ".join(f"{other} {table[other]}" for other in sorted(others))
                yield _finding(subject, routes, f"with {_FLAG} {word}, {name} is {table[name]} beside {listing}", table)
                return


def planted(subject: Subject) -> Subject:
    def window_never_asks(flags: Mapping[str, str]) -> Mapping[str, bool]:
        allowed = flags.get(_FLAG) != "0"
        return {"fa2_all_eff": allowed, "fa2_win_eff": True, "fa2_cmp_eff": allowed}

    return replace(subject, routes=window_never_asks)


def _finding(subject: Subject, routes: Callable[..., object], message: str, table: Mapping[str, bool]) -> Finding:
    code = getattr(inspect.unwrap(routes), "__code__", None)
    place = Place() if code is None else Place(file=code.co_filename, line=code.co_firstlineno, function=code.co_name)
    return Finding(message=message, where=place, evidence={**table}, repro=command_for(subject, "ENV101"))


def _are(names: list[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


CHECK = Check(doc=__doc__, run=run, planted=planted, needs=("routes",), profile="smoke")
