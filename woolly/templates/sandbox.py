"""Jinja sandbox for untrusted chat templates: no access to the system, limited time and memory.

Jinja parses a template. The sandbox rejects nodes that chat templates do not need, and rewrites the template so that
every loop body, macro, comparison, concatenation and slice is charged to the render's `Budget` (render_budget.py).
Values are plain data. Only the attributes, methods, filters, tests and functions listed in methods.py or filters.py
exist. All other behavior is that of Jinja's sandbox with the options that chat templates expect: trimmed blocks,
`break` and `continue`, and `{% generation %}` blocks rendered as their content.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from jinja2 import meta, nodes, pass_context
from jinja2.environment import Template
from jinja2.exceptions import SecurityError, TemplateRuntimeError, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from woolly.errors import TemplateError
from woolly.templates.filters import FILTERS, FUNCTIONS, TESTS, within
from woolly.templates.methods import METHODS, OPERATORS, PROPERTIES, Bound, operate, size_of
from woolly.templates.render_budget import (
    ACTIVE,
    Budget,
    charged_iterable,
    check_key,
    hold,
    join_texts,
    spend,
    text_of,
    weigh,
)

#: About eight and four times the values of the largest known template. At these limits, compiling takes up to a second.
MAX_SOURCE = 128 * 1024
MAX_TOKENS = 16_000
MAX_CALLS_DEEP = 60

_MAX_MESSAGE = 500


def _weighed(value: Any) -> Any:
    weigh(value)
    return value


def _sliced(value: Any, start: Any, stop: Any, step: Any) -> Any:
    part = slice(start, stop, step)
    if type(value) in (str, list, tuple):
        share = len(range(*part.indices(len(value))))
        hold(64 + size_of(value) * share // max(len(value), 1))
    elif type(value) is not range and not isinstance(value, Undefined):
        raise TypeError(f"{type(value).__name__!r} object cannot be sliced")
    return value[part]


#: Filters that only the rewriter can call: identifiers cannot contain "#", and `call_filter` rejects these names.
_GUARDS = {
    "#charge": spend,
    "#concat": lambda values: join_texts(map(text_of, values)),
    "#each": charged_iterable,
    "#key": check_key,
    "#slice": _sliced,
    "#weigh": _weighed,
    "#within": within,
}


class GenerationBlocks(Extension):
    """`{% generation %}` blocks, which mark text written by the model. Prompts include their content."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration)

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the block as a separate scope."""
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


class Sandbox(ImmutableSandboxedEnvironment):
    """Environment shared by all chat templates, without state of a render."""

    intercepted_binops = frozenset(OPERATORS)
    concat = staticmethod(join_texts)

    def __init__(self) -> None:
        # The optimizer would evaluate constant expressions during compilation, without a budget.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=pass_context(lambda context, value: text_of(value)),
            extensions=[GenerationBlocks, "jinja2.ext.loopcontrols"],
            cache_size=0,
        )
        self.filters = {**FILTERS, **_GUARDS}
        self.tests = dict(TESTS)
        self.globals = dict(FUNCTIONS)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return `obj.attribute`: an allowed method or property, else an item."""
        cls = type(obj)
        method = METHODS.get(cls, {}).get(attribute)
        if method is not None and (cls is not list or id(obj) not in ACTIVE.get().given):
            return Bound(method, obj)
        if cls is dict and attribute in obj:
            return obj[attribute]
        if (cls is Namespace and attribute in obj._Namespace__attrs) or attribute in PROPERTIES.get(cls, ()):
            return getattr(obj, attribute)
        if isinstance(obj, Undefined):
            obj._fail_with_undefined_error()
        if hasattr(cls, attribute):
            return self.unsafe_undefined(obj, attribute)
        return self.undefined(obj=obj, name=attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return `obj[argument]`: an item, else an allowed method or property."""
        cls = type(obj)
        try:
            check_key(argument)
        except TypeError as error:
            return self.undefined(str(error))
        if cls in (dict, list, tuple, str, range):
            try:
                return obj[argument]
            except (TypeError, LookupError):
                pass
        if type(argument) is str:
            # The error for an undefined value quotes the complete name.
            return self.getattr(obj, argument[:200])
        if isinstance(obj, Undefined):
            obj._fail_with_undefined_error()
        return self.undefined(obj=obj, name=argument)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function of the sandbox or a macro; templates cannot call anything else."""
        kwargs.pop("_loop_vars", None)
        kwargs.pop("_block_vars", None)
        budget = ACTIVE.get()
        budget.spend(8 + len(args) + len(kwargs))
        if type(obj) is Bound:
            return obj(*args, **kwargs)
        if type(obj) is not Macro:
            if isinstance(obj, Undefined):
                obj._fail_with_undefined_error()
            raise SecurityError(f"{type(obj).__name__!r} object cannot be called")
        budget.spend(56)
        budget.depth += 1
        if budget.depth > MAX_CALLS_DEEP:
            raise TemplateRuntimeError(f"macros call each other more than {MAX_CALLS_DEEP} deep")
        try:
            return obj(*args, **kwargs)
        finally:
            budget.depth -= 1

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply a binary operator of a template."""
        return operate(operator, left, right)

    def call_filter(self, name: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a filter whose name is only known at run time, as in `map`."""
        spend(8)
        if name not in FILTERS:
            raise TemplateRuntimeError(f"No filter named {text_of(name)[:100]!r}.")
        return super().call_filter(name, value, *args, **kwargs)

    def call_test(self, name: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a test whose name is only known at run time, as in `select`."""
        spend(8)
        if name not in TESTS:
            raise TemplateRuntimeError(f"No test named {text_of(name)[:100]!r}.")
        return super().call_test(name, value, *args, **kwargs)


_STATEMENTS = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.For, nodes.If, nodes.Macro),
    *(nodes.FilterBlock, nodes.Assign, nodes.AssignBlock, nodes.Scope, nodes.Break, nodes.Continue),
)
_EXPRESSIONS = (
    *(nodes.Name, nodes.NSRef, nodes.Const, nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair, nodes.CondExpr),
    *(nodes.Filter, nodes.Test, nodes.Call, nodes.Keyword, nodes.Getattr, nodes.Getitem, nodes.Concat),
    *(nodes.Compare, nodes.Operand, nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod),
    *(nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Pos),
)
#: Work of one evaluation, by default 1. A unit may keep at most 8 bytes alive.
_WEIGHTS: dict[type[nodes.Node], int] = {
    **dict.fromkeys(_STATEMENTS + _EXPRESSIONS, 1),
    nodes.Dict: 32,
    nodes.Macro: 32,
    nodes.For: 16,
    nodes.Pair: 16,
    nodes.List: 12,
    nodes.Call: 8,
    nodes.Getattr: 8,
    nodes.Scope: 8,
    nodes.Tuple: 8,
    nodes.Filter: 4,
    nodes.Name: 4,
    nodes.Getitem: 4,
    nodes.Test: 3,
    nodes.Output: 2,
}


def _guard(name: str, node: nodes.Expr, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


def _is_constant(node: nodes.Expr) -> bool:
    """Return True if comparing a value with `node` costs at most the length of the template."""
    if isinstance(node, (nodes.List, nodes.Tuple)):
        return all(isinstance(item, nodes.Const) for item in node.items)
    return isinstance(node, nodes.Const)


class _Rewriter(NodeTransformer):
    """Inserts charges and rejects nodes that are not listed. `weight` is the total work of the current region."""

    def __init__(self) -> None:
        self.weight = 0

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        weight = _WEIGHTS.get(type(node))
        if weight is None:
            kind = type(node).__name__.lower()
            raise TemplateSyntaxError(f"a chat template cannot use {kind!r}", node.lineno)
        self.weight += weight
        return super().visit(node, *args, **kwargs)

    def _region(self, body: Sequence[nodes.Node]) -> list[nodes.Node]:
        """Return `body`, which may run many times, preceded by a charge for one run."""
        outer, self.weight = self.weight, 4
        kept = [self.visit(node) for node in body]
        price, self.weight = self.weight, outer
        lineno = body[0].lineno if body else 1
        charge = _guard("#charge", nodes.Const(price, lineno=lineno))
        return [nodes.ExprStmt(charge, lineno=lineno), *kept]

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (Jinja's visitor names)
        if node.recursive:
            raise TemplateSyntaxError("a chat template cannot use a recursive loop", node.lineno)
        node.body = self._region(node.body)
        node.else_ = [self.visit(child) for child in node.else_]
        outer, self.weight = self.weight, 4
        node.test = self.visit(node.test) if node.test is not None else None
        price, self.weight = self.weight, outer
        node.iter = _guard("#each", self.visit(node.iter), nodes.Const(price, lineno=node.lineno))
        self.visit(node.target)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        node.defaults = [self.visit(default) for default in node.defaults]
        node.body = self._region(node.body)
        return node

    def visit_Const(self, node: nodes.Const) -> nodes.Node:  # noqa: N802
        # Larger integers can be chosen to collide in a hash table of Python's compiler.
        if type(node.value) is int and node.value.bit_length() > 60:
            raise TemplateSyntaxError("integers are limited to 60 bits", node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        values = [self.visit(child) for child in node.nodes]
        return _guard("#concat", nodes.List(values, lineno=node.lineno))

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        for pair in node.items:
            pair.key = _guard("#key", pair.key)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        if not isinstance(node.arg, nodes.Slice):
            return self.generic_visit(node)
        none = nodes.Const(None, lineno=node.lineno)
        ends = (node.arg.start, node.arg.stop, node.arg.step)
        return _guard("#slice", self.visit(node.node), *(self.visit(end) if end else none for end in ends))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        bare = len(node.ops) == 1 and (
            _is_constant(node.ops[0].expr) or (_is_constant(node.expr) and node.ops[0].op not in ("in", "notin"))
        )
        self.generic_visit(node)
        if bare:
            return node
        if not _is_constant(node.expr):
            node.expr = _guard("#weigh", node.expr)
        for operand in node.ops:
            operand.expr = _guard("#within" if operand.op in ("in", "notin") else "#weigh", operand.expr)
        return node

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        super().generic_visit(node, *args, **kwargs)
        # `f(*values)` iterates over the values, and `f(**values)` copies them.
        if isinstance(node, (nodes.Call, nodes.Filter, nodes.Test)):
            for field in ("dyn_args", "dyn_kwargs"):
                if getattr(node, field) is not None:
                    setattr(node, field, _guard("#each", getattr(node, field), nodes.Const(16)))
        return node


class CompiledTemplate:
    """Compiled template with charges. Rendering does not change it."""

    def __init__(self, source: str) -> None:
        if len(source) > MAX_SOURCE:
            raise TemplateError(f"the chat template has {len(source)} characters; the limit is {MAX_SOURCE}")
        #: All variables that the template reads, including those it only tests with `is defined`.
        self.variables: frozenset[str]
        try:
            self._template, self.variables = self._compile(source)
        except TemplateSyntaxError as error:
            raise TemplateError(f"the chat template is broken at line {error.lineno}: {error.message}") from None
        except (RecursionError, MemoryError):
            raise TemplateError("the chat template nests its blocks or expressions too deeply") from None
        except TemplateError:
            raise
        except Exception as error:
            raise TemplateError(f"the chat template cannot be compiled: {_summary(error)}") from None

    @staticmethod
    def _compile(source: str) -> tuple[Template, frozenset[str]]:
        environment = _environment()
        for n_tokens, _ in enumerate(environment.lex(source)):
            if n_tokens > MAX_TOKENS:
                raise TemplateError(f"the chat template has over {MAX_TOKENS} tokens, which is the limit")
        tree = _Rewriter().visit(environment.parse(source))
        template = environment.from_string(tree)
        # Jinja omits the names of functions, which variables may override.
        names = {node.name for node in tree.find_all(nodes.Name) if node.ctx == "load"} & environment.globals.keys()
        return template, frozenset(meta.find_undeclared_variables(tree) | names)

    def render(self, variables: dict[str, Any], budget: Budget) -> str:
        """Return the rendered text for `variables`, which must be plain data."""
        token = ACTIVE.set(budget)
        try:
            context = self._template.new_context(variables)
            return join_texts(self._template.root_render_func(context))
        except TemplateError:
            raise
        except RecursionError:
            raise TemplateError("the chat template calls itself too deeply") from None
        except Exception as error:
            line = self._line_of(error)
            raise TemplateError(f"the chat template failed at line {line}: {_summary(error)}") from None
        finally:
            ACTIVE.reset(token)

    def _line_of(self, error: Exception) -> int:
        line, trace = 0, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == "<template>":
                line = self._template.get_corresponding_lineno(trace.tb_lineno)
            trace = trace.tb_next
        return line


def _summary(error: Exception) -> str:
    # A KeyError quotes the complete key, which may be long.
    reason = error.args[0] if isinstance(error, KeyError) and error.args else error
    words = " ".join(str(reason)[:_MAX_MESSAGE].split())
    return words or type(error).__name__


@lru_cache(maxsize=1)
def _environment() -> Sandbox:
    return Sandbox()
