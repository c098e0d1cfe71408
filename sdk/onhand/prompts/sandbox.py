"""The Jinja environment of chat templates: a template comes out of a model file, so it is untrusted code.

It has what transformers gives templates (loop controls, the generation tag, raise_exception, strftime_now, its tojson)
in Jinja's immutable sandbox, without a loader. Time and memory are bounded by a meter: the syntax tree is rewritten so
that every loop pass, call, operator, comparison and piece of output pays before it runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer

from onhand.errors import TemplateLimitError
from onhand.prompts import operations
from onhand.prompts.clock import strftime
from onhand.prompts.meter import OPERATION, meter_of

MAX_NODES = 8_000
"""Most syntax nodes of a template: compiling takes about 0.1 ms for each. The largest of 786 real ones has 2,943."""

MAX_RANGE = 100_000
"""Most numbers in a range."""

_PAY = "pay for it"  # the keys of our own filters are not names, so that no template has them by accident
_RESULT = "pay for making it"
_STEP = "pay for a step"
_CONCAT = "pay for joining"

_HIDDEN_ARGUMENTS = ("_loop_vars", "_block_vars")  # what Jinja's compiler adds to calls, and Context.call removes

_REFUSED_NODES = {
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "import",
    nodes.Extends: "extends",
    nodes.EvalContextModifier: "autoescape",
}


class GenerationTag(Extension):
    """`{% generation %}`: marks what the model wrote, for training. It renders as its body."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Parser) -> nodes.Node:
        """Give the body a scope of its own, as it has in transformers."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class Sandbox(ImmutableSandboxedEnvironment):
    """One environment for one template. clock gives the time of strftime_now."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # the optimizer computes constants while compiling, where nothing is paid for
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
            finalize=_pay_for_output,
        )
        allowed = {name: function for name, function in self.filters.items() if name not in operations.REFUSED_FILTERS}
        self.filters = _paying({**allowed, **operations.OUR_FILTERS}, operations.FILTER_GROWTH)
        self.filters |= {_PAY: _pay, _RESULT: _pay_for_result, _STEP: _pay_for_step, _CONCAT: _concat}
        self.tests = _paying(self.tests, {})
        self.globals = {
            "range": _range,
            "dict": dict,
            "namespace": Namespace,
            "cycler": Cycler,
            "joiner": Joiner,
            "raise_exception": _raise_exception,
            "strftime_now": lambda text: strftime(clock(), text),
        }

    def load(self, source: str) -> jinja2.Template:
        """Compile a template.

        Raises jinja2.TemplateSyntaxError, TemplateLimitError, and what Python's compiler raises on monsters.
        """
        tree = self.parse(source)
        size = sum(1 for _ in tree.find_all(nodes.Node))
        if size > MAX_NODES:
            raise TemplateLimitError(f"it has {size} syntax nodes; at most {MAX_NODES} are compiled")
        for node in tree.find_all(tuple(_REFUSED_NODES)):
            name = next(word for kind, word in _REFUSED_NODES.items() if isinstance(node, kind))
            raise jinja2.TemplateSyntaxError(f"{name} is not allowed in a chat template", node.lineno)
        tree = _Metering().visit(tree)
        return self.template_class.from_code(self, self.compile(tree), self.make_globals(None))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Only known methods of plain values, and what Jinja allows on its own objects (loop, macros, namespaces)."""
        if isinstance(obj, str):
            return attr in operations.STR_METHODS
        if isinstance(obj, dict):
            return attr in operations.DICT_METHODS
        if isinstance(obj, list | tuple):
            return attr in operations.LIST_METHODS
        return type(obj).__module__ in ("jinja2.runtime", "jinja2.utils") and super().is_safe_attribute(
            obj, attr, value
        )

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """str.format with bounded widths. The string stays reachable, for `call` to reckon with."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text: str = value.__self__

        def formatted(*args: Any, **kwargs: Any) -> str:
            mapping = args[0] if value.__name__ == "format_map" and len(args) == 1 else kwargs
            return _BoundedFormatter(self).vformat(text, args, mapping)

        formatted.__self__ = text  # type: ignore[attr-defined]
        formatted.__name__ = value.__name__
        return formatted

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call what a template calls: a method, a macro, a function."""
        meter = meter_of(__context)
        owner = getattr(__obj, "__self__", None)
        named = {name: value for name, value in kwargs.items() if name not in _HIDDEN_ARGUMENTS}
        meter.pay_for(owner, *args, *named.values())
        if isinstance(owner, str):
            if __obj.__name__ == "join" and args:
                args = (list(args[0]), *args[1:])  # how many there are must be known before they are joined
            growth = operations.METHOD_GROWTH.get(__obj.__name__)
            if growth is not None:
                meter.spend(growth(meter, owner, *args, **named))
        return _paid(__context, super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator."""
        meter = meter_of(context)
        meter.pay_for(left, right)
        meter.spend(operations.binary_growth(meter, operator, left, right))
        return _paid(context, super().call_binop(context, operator, left, right))


class _BoundedFormatter(SandboxedFormatter):
    def format_field(self, value: Any, format_spec: str) -> Any:
        if any(int(number[:10]) > operations.MAX_FIELD_WIDTH for number in re.findall(r"\d+", format_spec)):
            raise TemplateLimitError(f"a field as wide as {format_spec!r}; at most {operations.MAX_FIELD_WIDTH} work")
        return super().format_field(value, format_spec)


class _Metering(NodeTransformer):
    """Rewrites a syntax tree so that everything pays that the sandbox's own hooks do not see."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        if node.test is not None:
            node.test = _filtered(_PAY, node.test)
        return self._stepping(node)

    def _stepping(self, node: Any) -> nodes.Node:
        """Pay at each pass for all nodes of the body, whichever of them will run."""
        self.generic_visit(node)
        size = sum(1 for child in node.body for _ in child.find_all(nodes.Node))
        node.body.insert(0, nodes.ExprStmt(_filtered(_STEP, nodes.Const(size, lineno=node.lineno)), lineno=node.lineno))
        return cast("nodes.Node", node)

    visit_Macro = visit_CallBlock = visit_Block = _stepping  # noqa: N815

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:  # noqa: N802
        return nodes.Const(node.data, lineno=node.lineno)  # template data bypass finalize, which pays for output

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _unless_constant(node.expr)
        for operand in node.ops:
            operand.expr = _unless_constant(operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            return _filtered(_RESULT, node)
        node.arg = _unless_constant(node.arg)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(_CONCAT, nodes.List(node.nodes, lineno=node.lineno))

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        for pair in node.items:
            pair.key = _unless_constant(pair.key)  # a key is hashed, all of it
        return _filtered(_RESULT, node)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(_RESULT, node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return node if node.ctx == "store" else _filtered(_RESULT, node)


def _filtered(name: str, value: nodes.Node) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=value.lineno)


def _unless_constant(value: nodes.Expr) -> nodes.Expr:
    return value if isinstance(value, nodes.Const) else _filtered(_PAY, value)


@pass_context
def _pay(context: Context, value: Any) -> Any:
    meter_of(context).pay_for(value)
    return value


@pass_context
def _pay_for_result(context: Context, value: Any) -> Any:
    meter_of(context).pay_for_result(value)
    return value


@pass_context
def _pay_for_step(context: Context, nodes_in_body: int) -> None:
    meter_of(context).spend(OPERATION + nodes_in_body)


@pass_context
def _pay_for_output(context: Context, value: Any) -> Any:
    return _pay(context, value)


@pass_context
def _concat(context: Context, values: list[Any]) -> str:
    meter_of(context).pay_for(*values)
    return "".join(map(str, values))


def _paid(context: Context, result: Any) -> Any:
    meter = meter_of(context)
    if isinstance(result, Iterator):
        return meter.metered(result)
    meter.pay_for_result(result)
    return result


def _paying(table: Mapping[str, Any], growths: Mapping[str, operations.Growth]) -> dict[str, Any]:
    """The same filters or tests, each paying for its arguments, what it will write, and its result."""
    return {name: _paying_one(name, function, growths.get(name)) for name, function in table.items()}


def _paying_one(name: str, function: Callable[..., Any], growth: operations.Growth | None) -> Callable[..., Any]:
    wanted = getattr(function, "jinja_pass_arg", None)  # what jinja2.pass_context and its like leave behind
    cheap = name in operations.CONSTANT_TIME

    @pass_context
    def run(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        meter = meter_of(context)
        if cheap:
            meter.pay_for()
        else:
            meter.pay_for(value, *args, *kwargs.values())
        if growth is not None:
            meter.spend(growth(meter, value, *args, **kwargs))
        if wanted is not None:
            lead = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
            return _paid(context, function(lead[wanted.name], value, *args, **kwargs))
        result = function(value, *args, **kwargs)
        return result if cheap else _paid(context, result)

    return run


def _range(*limits: int) -> range:
    numbers = range(*limits)
    if len(numbers) > MAX_RANGE:
        raise TemplateLimitError(f"range of {len(numbers):,} numbers; at most {MAX_RANGE:,} are allowed")
    return numbers


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(str(message))
