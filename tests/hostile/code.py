"""Pickles that ask a loader to run something: every way there is, in every container."""

import collections
import io
import os
import pickle
import pkgutil
import subprocess
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from tests.hostile.case import Calls, Case, Kept, archive, command, gate_tensors, pickled, saved

UNSAFE = ("unsafe",)


def cases() -> Iterator[Case]:
    for name, (make, says) in _LIVE.items():
        yield Case(f"code-{name}", _in_archive(make), UNSAFE, says=says)
    for name, (data, says) in _BY_HAND.items():
        yield Case(f"code-{name}", _in_archive(lambda folder, data=data: data), UNSAFE, says=says)
    yield Case("code-raw-pickle", _raw("raw.pt", 4), UNSAFE, says="'posix.system'")
    yield Case("code-raw-pickle-of-protocol-0", _raw("raw0.pth", 0), UNSAFE, says="'posix.system'")
    for protocol in (0, 1, 2, 4):
        name = f"as-safetensors-of-protocol-{protocol}"
        yield Case(f"code-{name}", _raw(f"{name}.safetensors", protocol), UNSAFE, says="'posix.system'")
    for name, head in {"number": b"I1\n0", "none": b"N0", "list": b"]q\x000"}.items():
        yield Case(f"code-after-a-{name}", _after(head), UNSAFE, says="'posix.system'")
    yield Case("code-raw-pickle-without-an-end", _endless, UNSAFE, says="'posix.system'")
    yield Case("raw-pickle-as-safetensors", _plain_as_safetensors, UNSAFE, says="bare pickle")
    yield Case("code-legacy", _legacy, UNSAFE, says="'posix.system'")
    yield Case("code-legacy-tar", _tar, UNSAFE, says="'posix.system'")
    yield Case("code-nested-archive", _nested, UNSAFE, says="hides another archive")
    yield Case("code-nested-pickle", _extra_pickle, UNSAFE, says="hides a pickle")
    yield Case("code-second-pickle", _second, UNSAFE, says="data2/data.pkl")
    yield Case("code-archive-in-archive-alone", _alone, UNSAFE, says="may be code")
    yield Case("code-torchscript", _script, UNSAFE, says="TorchScript")
    yield Case("code-whole-module", lambda folder: saved(folder / "m.pt", torch.nn.Linear(2, 2)), UNSAFE, says="Linear")
    yield Case("legacy-without-code", lambda folder: _old(folder / "old.pt"), UNSAFE, says="before 1.6")
    yield Case("raw-pickle-without-code", _plain_pickle, UNSAFE, says="bare pickle")


def live(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Those whose code runs when Python's own pickle reads them: proof that the corpus is armed."""
    for name, (make, _) in _LIVE.items():
        if name not in _NEEDS_TORCH:
            yield name, make(folder)


def _calls(function: Callable[..., object], *arguments: object, protocol: int = 2) -> Callable[[Path], bytes]:
    def make(folder: Path) -> bytes:
        evaluated = [argument(folder) if callable(argument) else argument for argument in arguments]
        return pickled({"step": 3, "x": Calls(function, *evaluated)}, protocol)

    return make


def _python(folder: Path) -> str:
    return f"import os; os.system({command(folder)!r})"


def _state(folder: Path) -> bytes:
    return _opcodes(b"cposix\nsystem\n", b"X", command(folder), b"\x85R.")


def _opcodes(asks: bytes, operation: bytes, text: str, ends: bytes) -> bytes:
    raw = text.encode()
    return b"\x80\x02" + asks + operation + len(raw).to_bytes(4, "little") + raw + ends


def _text(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


class _Built:
    """Asks for a class, and sets its state."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Calls, (os.system,), {"function": os.system, "arguments": (f"touch {self.path}",)}


_LIVE: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "reduce-system": (_calls(os.system, command), "'posix.system'"),
    "reduce-system-protocol-0": (_calls(os.system, command, protocol=0), "'posix.system'"),
    "reduce-system-protocol-4": (_calls(os.system, command, protocol=4), "'posix.system'"),
    "reduce-system-protocol-5": (_calls(os.system, command, protocol=5), "'posix.system'"),
    "reduce-eval": (_calls(eval, lambda folder: f"__import__('os').system({command(folder)!r})"), "'builtins.eval'"),
    "reduce-exec": (_calls(exec, _python), "'builtins.exec'"),
    "reduce-popen": (_calls(subprocess.check_call, lambda folder: ["touch", command(folder)[6:]]), "check_call"),
    "global-opcode": (_state, "'posix.system'"),
    "resolve-name": (
        lambda folder: pickled(Calls(map, Calls(pkgutil.resolve_name, "os:system"), [command(folder)])),
        "'builtins.map'",
    ),
    "resolve-name-alone": (
        lambda folder: _called_by_result(b"cpkgutil\nresolve_name\n", "os:system", command(folder)),
        "'pkgutil.resolve_name'",
    ),
    "inst-opcode": (
        lambda folder: b"(S'" + command(folder).encode() + b"'\niposix\nsystem\n.",
        "'posix.system'",
    ),
    "obj-opcode": (lambda folder: b"(cposix\nsystem\nS'" + command(folder).encode() + b"'\no.", "'posix.system'"),
    "stack-global": (
        lambda folder: (
            b"\x80\x04" + _text("posix") + b"\x94" + _text("system") + b"\x93" + _text(command(folder)) + b"\x85R."
        ),
        "'posix.system'",
    ),
    "partial": (
        lambda folder: _called_by_result(b"cfunctools\npartial\n", None, command(folder), b"cposix\nsystem\n\x85R"),
        "'functools.partial'",
    ),
    "python-2-name": (
        lambda folder: _opcodes(
            b"c__builtin__\neval\n", b"X", f"__import__('os').system('{command(folder)}')", b"\x85R."
        ),
        "'builtins.eval'",
    ),
    "default-factory": (
        lambda folder: pickled(Calls(collections.defaultdict, Calls(os.system, command(folder)))),
        "'posix.system'",
    ),
    "nested-pickle-of-torch": (
        lambda folder: pickled(Calls(torch.storage._load_from_bytes, pickle.dumps(Calls(os.system, command(folder))))),
        "'torch.storage._load_from_bytes'",
    ),
    "build-state": (lambda folder: pickled(_Built(command(folder)[6:])), "tests.hostile.case.Calls"),
    "in-a-list-of-hooks": (
        lambda folder: pickled(tensor_with_hooks(Calls(os.system, command(folder)))),
        "'posix.system'",
    ),
}
# What Python's own pickle cannot read without torch, or that only sets state.
_NEEDS_TORCH = {"nested-pickle-of-torch", "build-state", "in-a-list-of-hooks", "default-factory", "resolve-name"}


def _called_by_result(asks: bytes, argument: str | None, text: str, rest: bytes = b"") -> bytes:
    """Calls what a call gave."""
    given = rest if argument is None else b"X" + len(argument).to_bytes(4, "little") + argument.encode() + b"\x85R"
    return b"\x80\x02" + asks + given + b"X" + len(text).to_bytes(4, "little") + text.encode() + b"\x85R."


def tensor_with_hooks(hook: object) -> Calls:
    """A tensor whose hooks are code."""
    return Calls(torch._utils._rebuild_tensor_v2, Kept(1), 0, (1,), (1,), False, OrderedDict(hook=hook))


_BY_HAND: dict[str, tuple[bytes, str]] = {
    "attribute-of-a-function": (
        b"\x80\x04" + _text("torch._utils") + _text("_rebuild_tensor_v2.__globals__") + b"\x93.",
        "__globals__",
    ),
    "extension": (b"\x80\x02\x82\x01)R.", "a number that only its author knows"),
    "name-that-is-computed": (b"\x80\x04K\x01K\x02\x93.", "a name that it computes"),
    "calls-a-dtype": (b"\x80\x02ctorch\nfloat32\n)R.", "calls 'torch.float32'"),
    "calls-a-result": (b"\x80\x02ccollections\nOrderedDict\n)R)R.", "calls what it has computed"),
    "changes-a-function": (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}b.",
        "changes 'torch._utils._rebuild_tensor_v2'",
    ),
    "changes-a-class": (b"\x80\x02ctorch.nn.parameter\nParameter\n}b.", "changes 'torch.nn.parameter.Parameter'"),
    "changes-a-number": (b"\x80\x02K\x01}b.", "changes a plain value"),
    "rebuilds-by-a-name": (
        b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\n(cposix\nsystem\nctorch\nTensor\n)}tR.",
        "'posix.system'",
    ),
    "name-of-python-2-in-protocol-4": (
        b"\x80\x04" + _text("UserDict") + _text("OrderedDict") + b"\x93)R.",
        "'UserDict.OrderedDict'",
    ),
    "os-by-its-own-name": (b"\x80\x02cos\nsystem\n.", "'os.system'"),
    "nt": (b"\x80\x02cnt\nsystem\n.", "'nt.system'"),
    "hub": (b"\x80\x02ctorch.hub\nload\n.", "'torch.hub.load'"),
    "name-with-escapes": (b"\x80\x02cevil\n\x1b[2J[bold]x\n.", "\\x1b"),
    "name-of-a-megabyte": (b"\x80\x02cevil\n" + b"x" * 2**20 + b"\n.", "..."),
    "new-object": (b"\x80\x02csubprocess\nPopen\n)\x81.", "'subprocess.Popen'"),
    "new-object-with-words": (
        b"\x80\x04" + _text("subprocess") + _text("Popen") + b"\x93)}\x92.",
        "'subprocess.Popen'",
    ),
}


def _in_archive(make: Callable[[Path], bytes]) -> Callable[[Path], Path]:
    return lambda folder: archive(folder / "model.pt", make(folder))


def _raw(name: str, protocol: int) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(pickle.dumps(Calls(os.system, command(folder)), protocol))
        return path

    return make


def _after(head: bytes) -> Callable[[Path], Path]:
    """A pickle that does not begin as those that Python writes."""

    def make(folder: Path) -> Path:
        path = folder / "model.pt"
        path.write_bytes(head + b"cposix\nsystem\n(S'" + command(folder).encode() + b"'\ntR.")
        return path

    return make


def _endless(folder: Path) -> Path:
    path = folder / "model.pt"
    path.write_bytes(b"cposix\nsystem\n(S'" + command(folder).encode() + b"'\ntR")
    return path


def _plain_as_safetensors(folder: Path) -> Path:
    path = folder / "model.safetensors"
    path.write_bytes(pickle.dumps({"a": [1, 2]}))
    return path


def _plain_pickle(folder: Path) -> Path:
    path = folder / "plain.pt"
    path.write_bytes(pickle.dumps({"a": [1, 2]}))
    return path


def _old(path: Path, thing: object = None) -> Path:
    torch.save(gate_tensors() if thing is None else thing, path, _use_new_zipfile_serialization=False)
    return path


def _legacy(folder: Path) -> Path:
    return _old(folder / "legacy.pt", Calls(os.system, command(folder)))


def _tar(folder: Path) -> Path:
    path = folder / "legacy.tar.pth"
    with tarfile.open(path, "w") as tar:
        for name, content in (
            ("sys_info", pickle.dumps({}, 2)),
            ("pickle", pickle.dumps(Calls(os.system, command(folder)), 2)),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def _evil_archive(folder: Path) -> bytes:
    inner = folder / "inner.pt"
    archive(inner, pickled(Calls(os.system, command(folder))))
    content = inner.read_bytes()
    inner.unlink()
    return content


def _healthy(folder: Path, entries: dict[str, bytes]) -> Path:
    path = saved(folder / "model.pt")
    with zipfile.ZipFile(path, "a") as file:
        for name, content in entries.items():
            file.writestr(name, content)
    return path


def _nested(folder: Path) -> Path:
    return _healthy(folder, {"model/.extra": _evil_archive(folder)})


def _extra_pickle(folder: Path) -> Path:
    return _healthy(folder, {"model/config.bin": pickle.dumps(Calls(os.system, command(folder)))})


def _second(folder: Path) -> Path:
    return archive(
        folder / "model.pt", pickled({}), {"archive/data2/data.pkl": pickled(Calls(os.system, command(folder)))}
    )


def _alone(folder: Path) -> Path:
    path = folder / "model.pt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("weights/model.pt", _evil_archive(folder))
    return path


def _script(folder: Path) -> Path:
    return archive(folder / "script.pt", pickled({}), {"archive/constants.pkl": pickled(()), "archive/code/m.py": b"x"})
