"""Private names of torch and of CPython are used in the modules `internal` alone."""

import ast
from pathlib import Path

import pytest

from tests.private_names import private_uses, uses

ROOT = Path(__file__).parents[1]


def test_no_other_module_uses_a_private_name_of_a_library() -> None:
    found = private_uses(ROOT)
    assert not found, "for probes/internal.py, or core/internal.py where torch is not imported:\n" + "\n".join(found)


USED = {
    "an attribute of a tensor": "tensor._version",
    "one that a class of ours has too": "module._buffers",
    "one of a node": "int(node._sequence_nr())",
    "one of torch's own module": "torch._C._current_autograd_node()",
    "one of CPython": "sys._getframe(1)",
    "one of a class of typer": "context._opt_prefixes",
    "by its name": "getattr(node, '_forward_cls', None)",
    "written": "setattr(module, '_parameters', {})",
    "by the name of a registry": "name in ('_modules', '_parameters')",
    "inherited": "self._call_impl(x)",
    "a private module": "import _compat_pickle",
    "a private module of torch": "from torch.utils._pytree import tree_map",
    "a private class": "from torch.autograd.function import _SingleLevelFunction",
    "imported late": "importlib.import_module('torch._dynamo')",
    "looked for": "'torch._dynamo' in sys.modules",
    "not promised": "from torch.utils.flop_counter import flop_registry",
}
UNUSED = {
    "of our own": "other._places",
    "of this object": "self._version",
    "inherited of our own": "super()._places",
    "of a named tuple": "pair._replace(a=1)",
    "documented": "os._exit(1)",
    "our own module": "from nsa_doctor.checks._shared.earlier import Replays",
    "of a name of ours": "from nsa.data.packing import _tokenized",
    "the language's": "type(value).__name__",
    "a word of a file": "'_rebuild_tensor_v2'",
}


@pytest.mark.parametrize("source", USED.values(), ids=USED)
def test_a_use_is_found(source: str) -> None:
    assert list(uses(ast.parse(source), {"_buffers", "_version", "_places"}))


@pytest.mark.parametrize("source", UNUSED.values(), ids=UNUSED)
def test_what_is_ours_or_public_may_be_used(source: str) -> None:
    assert not list(uses(ast.parse(source), {"_buffers", "_version", "_places"}))
