"""Products of rows of length one with rows of any length, of which a choice or a share is made as of cosines."""

import linecache
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.errors import Caught
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.behaviour.watched_losses import watched_loss
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import is_transformed
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.contracted import Contraction, contraction_of
from nsa_doctor.probes.tensors.graph_nodes import VIEWS, computing, is_of_data, kind_of
from nsa_doctor.probes.tensors.operations import tensors_in

_LAID_OUT = frozenset({
    "t", "transpose", "permute", "movedim", "view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "expand",
    "contiguous", "clone", "to", "float", "double", "type_as", "__getitem__", "__get__", "select", "narrow",
})  # fmt: skip
_SCALING = frozenset({"mul", "mul_", "__mul__", "__rmul__", "__imul__", "div", "div_", "__truediv__", "__itruediv__"})
_SCORES = (
    frozenset({"masked_fill", "masked_fill_", "where", "clamp", "clip", "diagonal", "diag", "tril", "triu"}) | _LAID_OUT
)
_SHARING = frozenset({
    "softmax", "log_softmax", "gumbel_softmax", "logsumexp", "cross_entropy", "argmax", "topk", "sort", "argsort",
    "logsigmoid", "binary_cross_entropy_with_logits", "scaled_dot_product_attention", "multi_margin_loss",
})  # fmt: skip
_OF_ROWS = frozenset({
    "Mean", "Sum", "Mm", "Bmm", "Index", "IndexAdd", "IndexPut", "ScatterAdd", "Scatter", "Div", "Mul", "Add", "Stack",
    "Cat", "Lerp", "IndexSelect", "Gather", "Where", "Sub", "Neg", "Cumsum", "Amax", "Max", "MaxPool2DWithIndices",
    "AvgPool2D", "AdaptiveAvgPool2D", "NativeDropout", "Roll", "Flip", "ConstantPadNd", "Repeat", "Unfold", *VIEWS,
})  # fmt: skip
_CHOOSING = {"argmax": 1, "argsort": 1, "sort": 1, "topk": 2}  # and which argument is the axis
_OF_NORMS = re.compile(r"(batch|layer|group|rms)_?norm", re.IGNORECASE)  # the other way to make lengths count little
_MEANT = re.compile(
    r"magnitude|unnormali[sz]ed|not normali[sz]ed|norm.free|on purpose|deliberate|popularity", re.IGNORECASE
)
_ALIKE, _UNLIKE, _WHOLE = 1e-3, 0.03, 0.999
_FEWEST, _FEWEST_CHANNELS = 3, 4
_MOST_ROWS = 40  # nodes
_ABOVE = 3  # lines that a remark stands above its line
_OF_DISTANCES = 2.0


@dataclass(frozen=True)
class HalfCosine:
    """The lengths of the rows that are not of length one, what they are, what is made of the product, and its line."""

    least: float
    most: float
    other: str
    use: str
    place: Place


@dataclass
class _Product:
    """`is_of_rows`: the other side is laid out in rows, and is no matrix that is read; `factors`: their lengths."""

    answer: Tensor
    found: HalfCosine
    is_table: bool
    is_of_rows: bool
    factors: Tensor | None
    uses: list[str] = field(default_factory=list)


def half_cosines(sp: BuiltModule, call: Callable[[], Any]) -> list[HalfCosine] | Caught:
    """Those of one call, in their order."""
    found = watched_loss(sp, call, lambda places: _Watch(places, sp.module))
    return found if isinstance(found, Caught) else found[0].found


class _Watch(TorchFunctionMode):
    """Follows rows of length one up to a product, and the product up to what is made of it.

    A function mode is a base class by torch's design.
    """

    def __init__(self, places: Places, module: nn.Module) -> None:
        super().__init__()
        self.found: list[HalfCosine] = []
        self._places, self._root = places, module
        self._units: dict[int, tuple[Tensor, str]] = {}  # and what they were multiplied by since
        self._nodes: set[Any] = set()
        self._even: set[Any] = set()  # of rows of one length, whatever it is
        self._products: dict[int, tuple[Tensor, _Product]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function and look at what it is given and gives."""
        name, named = getattr(func, "__name__", ""), kwargs or {}
        answer = func(*args, **named)
        first = args[0] if args else None
        if isinstance(first, Tensor) and is_transformed(first):
            return answer
        is_shared = name in _SHARING and bool(self._products)
        if is_shared and not (name in _CHOOSING and self._is_same_choice(name, args, named, answer)):
            self._share(name, tensors_in(args[:1], named))
        if isinstance(answer, Tensor) and answer.requires_grad and answer.is_floating_point():
            with torch.no_grad():
                self._follow(func, args, named, answer)
        return answer

    def _follow(self, func: Any, args: tuple[Any, ...], named: dict[str, Any], answer: Tensor) -> None:
        name = getattr(func, "__name__", "")
        length = _even_length(args, answer) if name in _SCALING and len(args) > 1 else 0.0
        if length:
            self._even.add(answer.grad_fn)
        if name == "normalize" or abs(length - 1) < _ALIKE:
            self._nodes.add(answer.grad_fn)
            self._units[id(answer)] = answer, ""
        elif (pair := contraction_of(name, args, named)) is not None:
            self._compare(func, args, pair, answer)
        elif name in _SCALING and len(args) > 1:
            self._scale(args, answer)
        elif args and id(args[0]) in self._units and name in _LAID_OUT:
            self._units[id(answer)] = answer, self._units[id(args[0])][1]
        elif name in _SCORES or self._is_biased(name, args):
            known = next((self._products[id(each)] for each in tensors_in(args) if id(each) in self._products), None)
            if known is not None:
                self._products[id(answer)] = answer, known[1]

    def _scale(self, args: tuple[Any, ...], answer: Tensor) -> None:
        """Of a product or of rows of length one, by a number."""
        for each, by in (args[:2], args[1::-1]):
            factor = _factor(by)
            if factor and id(each) in self._units:
                self._units[id(answer)] = answer, factor
            if factor and id(each) in self._products:
                product = self._products[id(each)][1]
                self._products[id(answer)] = answer, product
                self._use(product, factor)

    def _is_biased(self, name: str, args: tuple[Any, ...]) -> bool:
        """Whether something is added that no lengths are part of."""
        others = [each for each in args[:2] if isinstance(each, Tensor) and id(each) not in self._products]
        return name in ("add", "add_", "__add__", "__radd__", "__iadd__") and all(each.is_leaf for each in others)

    def _compare(self, func: Any, args: tuple[Any, ...], pair: Contraction, answer: Tensor) -> None:
        """Look at a product, whether one side alone is of length one."""
        name = getattr(func, "__name__", "")
        sides = (pair.left, pair.left_axis), (pair.right, pair.right_axis)
        for (unit, axis), (other, other_axis) in (sides, sides[::-1]):
            if id(unit) not in self._units or not is_of_data(unit.grad_fn) or unit.shape[axis] < _FEWEST_CHANNELS:
                continue
            of_unit, lengths = _lengths(unit, axis), _lengths(other, other_axis)
            if min(len(of_unit), len(lengths)) < _FEWEST or not _are_alike(of_unit) or _is_one_hot(unit, axis):
                continue
            least, most = (float(each) for each in lengths.aminmax())
            words, is_table = self._words(other, other_axis)
            if most - least <= _UNLIKE * most or not words or self._is_of_units(other):
                continue
            place, is_own = self._places.here()
            if not is_own or _is_meant(place, self._places.source()):
                continue
            is_of_rows = name != "linear" if is_table else other.stride(other_axis) == 1
            factors = _factors(func, args, unit, other, other_axis)
            product = _Product(answer, HalfCosine(least, most, words, "", place), is_table, is_of_rows, factors)
            self._products[id(answer)] = answer, product
            factor = self._units[id(unit)][1]
            if factor:
                self._use(product, factor)
            if name in _SHARING:
                self._share(name, [answer])

    def _use(self, product: _Product, factor: str) -> None:
        product.uses.append(factor)
        if factor == "a distance":
            return
        if product.is_of_rows and (product.is_table or factor == "a learned scale"):
            self._report(product, f"times {factor}")

    def _is_same_choice(self, name: str, args: tuple[Any, ...], named: dict[str, Any], answer: Any) -> bool:
        """Whether the lengths are the same for all that is chosen among; what it gives of them is followed."""
        known = self._products.get(id(args[0])) if args else None
        axis = (
            args[_CHOOSING[name]] if len(args) > _CHOOSING[name] else named.get("dim", None if name == "argmax" else -1)
        )
        factors = known[1].factors if known else None
        if known is None or factors is None or type(axis) is not int or factors.shape != args[0].shape:
            return False
        least, most = factors.amin(axis), factors.amax(axis)
        if not bool((most - least <= _ALIKE * most).all()):
            return False
        if isinstance(answer, tuple):
            self._products[id(answer[0])] = answer[0], known[1]
        return True

    def _share(self, name: str, given: list[Tensor]) -> None:
        for each in given:
            if id(each) in self._products:
                self._report(self._products[id(each)][1], name)

    def _report(self, product: _Product, use: str) -> None:
        if "a distance" not in product.uses and all(each.place != product.found.place for each in self.found):
            seen = product.found
            self.found.append(HalfCosine(seen.least, seen.most, seen.other, use, seen.place))

    def _words(self, other: Tensor, axis: int) -> tuple[str, bool]:
        """What the other side is, and whether it is a table; empty of what projects, and of constants."""
        if not other.requires_grad or not other.is_floating_point():
            return "", False
        node = other.grad_fn and computing(other.grad_fn, VIEWS)
        held = other if other.is_leaf else getattr(node, "variable", None)
        if held is None:
            return "" if self._is_normed(node) else "what the model computes", False
        if held.ndim != 2 or other.shape[axis] != held.shape[-1] or held.shape[-1] == held.shape[0]:
            return "", False
        holders = [
            (f"{path}.{name}".strip("."), part)
            for path, part in self._root.named_modules()
            for name, each in part.named_parameters(recurse=False)
            if each is held
        ]
        if not holders or any(_projects(part) for _, part in holders):
            return "", False
        return holders[0][0], True

    def _is_normed(self, node: Any) -> bool:
        """Whether it is what a norm made, or that times a gain."""
        made_by = [node, *(each for each, _ in node.next_functions if kind_of(node) == "Mul")] if node else []
        return any(each in self._even or _OF_NORMS.search(kind_of(each)) for each in made_by)

    def _is_of_units(self, other: Tensor) -> bool:
        """Whether it is a mean, or another sum, of rows of length one."""
        waiting, seen = [other.grad_fn], set[Any]()
        while waiting and len(seen) < _MOST_ROWS:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            if node in self._nodes:
                return True
            seen.add(node)
            if kind_of(node) in _OF_ROWS:
                waiting += [each for each, _ in node.next_functions]
        return False


def _factors(func: Any, args: tuple[Any, ...], unit: Tensor, other: Tensor, axis: int) -> Tensor | None:
    """By what each value of a product would change if the other side were of length one too."""
    if unit is other or getattr(func, "__name__", "") in _SHARING or not {id(unit), id(other)} <= set(map(id, args)):
        return None
    lengths = torch.linalg.vector_norm(other, dim=axis, keepdim=True).expand_as(other)
    even = {id(unit): torch.full_like(unit, 1 / other.shape[axis]), id(other): lengths}
    factors: Tensor = func(*(even.get(id(each), each) for each in args))
    return factors


def _even_length(args: tuple[Any, ...], answer: Tensor) -> float:
    """Of all rows along an axis, which a factor that is the same along it gives them; zero where there is none."""
    for by in args[:2]:
        if isinstance(by, Tensor) and by.ndim == answer.ndim and by.numel() < answer.numel():
            for axis, size in enumerate(by.shape):
                if size == 1 < answer.shape[axis]:
                    lengths = _lengths(answer, axis)
                    if len(lengths) >= _FEWEST and _are_alike(lengths):
                        return float(lengths[0])
    return 0.0


def _lengths(rows: Tensor, axis: int) -> Tensor:
    """Of those that are not zero, as padding is."""
    found = torch.linalg.vector_norm(rows.detach().double(), dim=axis).flatten()
    return found[found > _ALIKE * _ALIKE]


def _are_alike(lengths: Tensor) -> bool:
    least, most = lengths.aminmax()
    return bool(most - least <= _ALIKE * most)


def _is_one_hot(rows: Tensor, axis: int) -> bool:
    size = torch.linalg.vector_norm(rows.detach(), dim=axis)
    return bool((rows.detach().abs().amax(axis) >= _WHOLE * size).double().mean() > 0.5)


def _factor(by: Any) -> str:
    """What a number is that something is multiplied by; empty of what is none, and of one."""
    if isinstance(by, Tensor):
        if by.numel() != 1:
            return ""
        return "a learned scale" if by.requires_grad else _factor(float(by))
    if type(by) not in (int, float) or by == 1:
        return ""
    return "a distance" if abs(by) == _OF_DISTANCES else "a scale"


def _projects(part: nn.Module) -> bool:
    return isinstance(part, nn.Linear) or (hasattr(part, "in_features") and not isinstance(part, nn.Embedding))


def _is_meant(place: Place, source: str) -> bool:
    """Whether a remark at the line, or the source of it, says that lengths are to count."""
    lines = [linecache.getline(place.file, max(1, place.line - back)) for back in range(_ABOVE + 1)]
    remarks = [each.partition("#")[2] if back else each for back, each in enumerate(lines)]
    return bool(_MEANT.search("\n".join([*remarks, source])))
