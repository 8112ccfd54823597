"""What a chat template may use up: a checkpoint is data of strangers, and its template a program.

Jinja's sandbox keeps a template away from Python's attributes, not from memory and time. Here every
loop, call, text and list of one rendering is counted against a budget that grows with the messages,
and the processor time of the rendering has a limit. What multiplies in a single step (`'a' * 10**10`,
`9 ** 9 ** 9`, `|center(10**9)`) is refused before it is computed: operators are looked at, and only
filters and methods are known whose result is as large as what they are given.

Any thread; one `Budget` belongs to one rendering.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import jinja2
from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_SOURCE_CHARS: Final = 1 << 20
BASE_UNITS: Final = 2 << 20  # characters, items and steps, for messages of no length
UNITS_PER_CHAR: Final = 32  # of the messages
STEP_UNITS: Final = 16  # of a loop, a call or a list: what takes the time of so many characters
MAX_CPU_S: Final = 5.0  # the published templates take a millisecond
MAX_INT_BITS: Final = 4096
MAX_INDENT: Final = 16
BUDGET: Final = "the budget"  # no name that a template could write

FILTERS: Final = frozenset(  # of Jinja's own; those that multiply are ours, below
    [
        "capitalize",
        "count",
        "d",
        "default",
        "dictsort",
        "e",
        "escape",
        "first",
        "float",
        "int",
        "items",
        "last",
        "length",
        "list",
        "lower",
        "map",
        "max",
        "min",
        "reject",
        "rejectattr",
        "reverse",
        "safe",
        "select",
        "selectattr",
        "sort",
        "string",
        "title",
        "trim",
        "unique",
        "upper",
    ]
)
GLOBALS: Final = frozenset({"range", "dict", "namespace"})
TEXT_METHODS: Final = frozenset(
    [
        "capitalize",
        "count",
        "endswith",
        "find",
        "index",
        "isalnum",
        "isalpha",
        "isascii",
        "isdecimal",
        "isdigit",
        "islower",
        "isnumeric",
        "isspace",
        "istitle",
        "isupper",
        "join",
        "lower",
        "lstrip",
        "partition",
        "removeprefix",
        "removesuffix",
        "replace",
        "rfind",
        "rindex",
        "rpartition",
        "rsplit",
        "rstrip",
        "split",
        "splitlines",
        "startswith",
        "strip",
        "swapcase",
        "title",
        "upper",
    ]
)


class TemplateUsesTooMuch(jinja2.TemplateError):
    """The template wants more memory or time than these messages can need."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the chat template uses too much: {what}")


class Budget:
    """What one rendering may still use."""

    def __init__(self, n_chars: int) -> None:
        self._left = BASE_UNITS + UNITS_PER_CHAR * n_chars
        # Of this thread alone: a busy machine makes no template hostile.
        self._until_s = time.thread_time() + MAX_CPU_S

    def spend(self, units: int) -> None:
        self._left -= units
        if self._left < 0:
            raise TemplateUsesTooMuch("text, lists or steps without end")
        if time.thread_time() > self._until_s:
            raise TemplateUsesTooMuch(f"more than {MAX_CPU_S:g} s of processor time")

    def count(self, value: Any) -> Any:
        """The value, spent as the tree that it is when it is written or compared."""
        if isinstance(value, str):
            self.spend(len(value))
        elif isinstance(value, Mapping):
            self.spend(STEP_UNITS)
            for key, item in value.items():
                self.count(key)
                self.count(item)
        elif isinstance(value, list | tuple):
            self.spend(STEP_UNITS)
            for item in value:
                self.count(item)
        else:
            self.spend(1)
        return value


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Compiles templates that can only render with `BUDGET` among their variables."""

    intercepted_binops = frozenset({"+", "*", "**", "%", "-", "/", "//"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols],
            finalize=_counted,
            optimized=False,  # constants are computed by us too, not while compiling
        )
        self.filters = {name: self.filters[name] for name in FILTERS} | {
            "tojson": _to_json,
            "join": _join,
            "replace": _replace,
            "each of": _each_of,
            "counted": _counted,
        }
        self.globals = {name: self.globals[name] for name in GLOBALS}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > MAX_SOURCE_CHARS:
            raise TemplateUsesTooMuch(f"it has {len(source)} characters")
        found: nodes.Template = _Counting().visit(super()._parse(source, name, filename))
        return found

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in TEXT_METHODS
        if isinstance(obj, int | float | bytes | type):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget: Budget = context.parent[BUDGET]
        budget.spend(1)
        match operator:
            case "+" if isinstance(left, str | list | tuple):
                budget.count(left)
                budget.count(right)
            case "*":
                _check_product(budget, left, right)
            case "**":
                _check_power(left, right)
            case "%" if isinstance(left, str):
                raise SecurityError("texts are not formatted with %; join them with ~")
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  so that a macro may have any argument
        budget: Budget = __context.parent[BUDGET]
        budget.spend(2 * STEP_UNITS)
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str) and name in ("replace", "join"):
            args = tuple(list(one) if name == "join" else one for one in args)
            _check_growth(budget, owner, name, args)
        return budget.count(super().call(__context, __obj, *args, **kwargs))


class _Counting(NodeTransformer):
    """Puts our filters around whatever repeats or makes something larger."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802  by this name it is found
        if node.recursive:
            raise jinja2.TemplateSyntaxError("recursive loops are not supported", node.lineno)
        written = sum(len(one.data) for one in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        cost = nodes.Const(STEP_UNITS + written, lineno=node.lineno)
        node.iter = _filtered(node.iter, "each of", cost)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Concat:  # noqa: N802  by this name it is found
        self.generic_visit(node)
        node.nodes = [_filtered(one, "counted") for one in node.nodes]
        return node

    def visit_List(self, node: nodes.List) -> nodes.Expr:  # noqa: N802  by this name it is found
        self.generic_visit(node)
        return _filtered(node, "counted")

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:  # noqa: N802  by this name it is found
        self.generic_visit(node)
        return node if node.ctx != "load" else _filtered(node, "counted")

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:  # noqa: N802  by this name it is found
        self.generic_visit(node)
        return _filtered(node, "counted")


def _filtered(node: nodes.Node, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


def _check_product(budget: Budget, left: Any, right: Any) -> None:
    for one, times in ((left, right), (right, left)):
        if isinstance(one, str | list | tuple) and isinstance(times, int):
            budget.spend((_size(one) + 1) * max(times, 0))
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())


def _size(value: Any) -> int:
    """Of what was counted before, so it is no more than the budget."""
    return n_chars(value)


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(max(left.bit_length(), 1) * abs(right))


def _check_bits(n_bits: int) -> None:
    if n_bits > MAX_INT_BITS:
        raise TemplateUsesTooMuch(f"a number of {n_bits} bits")


def _check_growth(budget: Budget, text: str, method: str, args: tuple[Any, ...]) -> None:
    if method == "join" and args:
        budget.count(args[0])
        budget.spend(len(text) * len(args[0]))
    elif method == "replace" and len(args) > 1:
        budget.spend((len(text) + 1) * max(1, len(str(args[1]))))


@pass_context
def _counted(context: Context, value: Any) -> Any:
    budget: Budget = context.parent[BUDGET]
    return budget.count(value)


@pass_context
def _each_of(context: Context, items: Iterable[Any], cost: int) -> Iterator[Any]:
    budget: Budget = context.parent[BUDGET]
    for item in items:
        budget.spend(cost)
        yield item


@pass_context
def _join(context: Context, items: Iterable[Any], d: str = "", attribute: Any = None) -> str:
    budget: Budget = context.parent[BUDGET]
    found = list(items)
    if attribute is not None:
        found = [context.environment.getitem(one, attribute) for one in found]
    for one in found:
        budget.count(one)
        budget.spend(len(d) + 1)
    return d.join(map(str, found))


@pass_context
def _replace(context: Context, text: Any, old: Any, new: Any, count: int = -1) -> str:
    _check_growth(context.parent[BUDGET], str(text), "replace", (old, new))
    return str(text).replace(str(old), str(new), count)


@pass_context
def _to_json(context: Context, value: Any, indent: int | None = None, **options: Any) -> str:
    """Jinja's own filter escapes HTML, which no chat template expects."""
    budget: Budget = context.parent[BUDGET]
    budget.count(value)
    if indent is not None and not 0 <= indent <= MAX_INDENT:
        raise TemplateUsesTooMuch(f"an indent of {indent}")
    options.setdefault("ensure_ascii", False)
    text: str = budget.count(json.dumps(value, indent=indent, **options))
    return text


def n_chars(value: Any) -> int:
    """How many characters messages have, by which a budget grows."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(n_chars(key) + n_chars(item) for key, item in value.items())
    return sum(map(n_chars, value)) if isinstance(value, list | tuple) else 1
