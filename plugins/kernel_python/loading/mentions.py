"""What one file of Python says, without running it: its imports, what each name may stand for, and every mention of a name.

The source is parsed and walked once, without recursion, so that its depth costs nothing; time and memory are linear in its
bytes. What a mention means is not decided here: names are resolved when all files of a model have been read (evidence.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kernel_python.loading.parsing import tree_of

__all__ = [
    "ALIAS",
    "ASKED",
    "MODULE",
    "OWN",
    "STORED",
    "UNTOLD",
    "VALUE",
    "Call",
    "Chain",
    "Class",
    "Import",
    "Mention",
    "Scope",
    "Source",
    "read",
]

#: A name and what is asked of it: `os.environ.get("A").x` is ("os", "environ", "get", "(…)", "x"). "()" is a call without
#: arguments, "[]" an item. The first is "" where it is no name; MODULE where a module's name follows as imports spell it, part by
#: part; OWN where that is one of the model's own.
Chain = tuple[str, ...]
MODULE, OWN = "import:", "own:"

#: How a mention is used: as a value that goes anywhere; bound to a name, which is followed; assigned to or deleted; only asked
#: whether it has an attribute.
VALUE, ALIAS, STORED, ASKED = "value", "alias", "stored", "asked"

#: Stands for an argument that isn't a constant or a name.
UNTOLD = object()

_SPINE = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)
_TARGETS = (ast.Name, ast.Attribute, ast.Subscript)
#: Longer chains are cut: no name in the tables has so many parts.
_LONGEST = 12
#: Arguments with which `getLogger` returns the root logger.
_ROOT_LOGGER = (None, "", "root")


@dataclass(eq=False, slots=True)
class Scope:
    """The names of a module, class or function. `bound`: name -> what it was bound to, and where; none for what it makes."""

    kind: str  # module, class, def, async def, lambda
    outer: Scope | None = None
    bound: dict[str, dict[tuple[Scope, Chain], None]] = field(default_factory=dict)
    elsewhere: dict[str, Scope] = field(default_factory=dict)  # what `global` and `nonlocal` name
    stars: list[Chain] = field(default_factory=list)  # modules of which everything is imported

    def bind(self, name: str, chain: Chain | None = None, where: Scope | None = None) -> None:
        """Note that `name` may be what `chain` means `where`, by default here; None: something that nobody looks for."""
        found = self.elsewhere.get(name, self).bound.setdefault(name, {})
        # The result of a call with arguments, or an item, is a new object about which the tables say nothing: not followed.
        if chain is not None and chain[0] and not {"(…)", "[]"} & {*chain}:
            found[where or self, chain] = None

    def on_import(self) -> bool:
        """Return whether its code runs while the file is imported."""
        scope: Scope | None = self
        while scope is not None and scope.kind in ("module", "class"):
            scope = scope.outer
        return scope is None


@dataclass(frozen=True, slots=True)
class Import:
    """An import of `module`, a MODULE or OWN chain; `names`: those of a `from … import`, which may be modules, too."""

    line: int
    module: Chain
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """What a call is given, as far as it is told: a constant; ".x" for a name or attribute x; UNTOLD for anything else.

    `first`: the first unnamed argument, None where there is none; `count`: how many there are, `*more` among them if `more`.
    `named`: the others, None being the name of `**more`.
    """

    first: object = None
    count: int = 0
    more: bool = False
    named: Mapping[str | None, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mention:
    """`calls`: where in the chain calls stand, and each call."""

    line: int
    scope: Scope
    chain: Chain
    use: str
    calls: tuple[tuple[int, Call], ...] = ()


@dataclass(eq=False, slots=True)
class Class:
    """`methods`: name -> whether it is `async def`; None where that can't be told."""

    scope: Scope
    bases: list[Chain | None]
    methods: dict[str, bool | None] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Source:
    """One file. `fields`: what attributes of self and cls were bound to. `classes`: those at its top level, by name."""

    top: Scope = field(default_factory=lambda: Scope("module"))
    fields: Scope = field(default_factory=lambda: Scope("fields"))
    imports: list[Import] = field(default_factory=list)
    mentions: list[Mention] = field(default_factory=list)
    classes: dict[str, list[Class]] = field(default_factory=dict)
    exits: list[int] = field(default_factory=list)  # the lines of `raise SystemExit`


def read(text: bytes, name: str, package: Chain) -> Source:
    """Read one file, which is in the model's own `package` (the parts of its name).

    Raises SyntaxError, ValueError, RecursionError and MemoryError where the text can't be parsed.
    """
    visitor = _Visitor(package)
    visitor.walk(tree_of(text, name))
    return visitor.source


_NOTHING = Call()


class _Visitor:
    """Walks one file. A method `_see_<node>` says what is to be done with a kind of node; the others' children are visited."""

    def __init__(self, package: Chain) -> None:
        self.source = Source()
        self._package = package
        self._left: list[tuple[ast.AST, Scope]] = []

    def walk(self, tree: ast.Module) -> None:
        self._later(tree.body, self.source.top)
        while self._left:
            node, scope = self._left.pop()
            see = getattr(self, f"_see_{type(node).__name__}", None)
            if see is not None:
                see(node, scope)
            elif isinstance(node, _SPINE):
                self._mention(node, scope, VALUE)
            else:
                self._later(ast.iter_child_nodes(node), scope)

    def _later(self, nodes: Iterable[ast.AST | None], scope: Scope) -> None:
        """Have nodes visited next, in their order."""
        self._left.extend((node, scope) for node in reversed(list(nodes)) if node is not None)

    # -- mentions ------------------------------------------------------------------------------------------------------

    def _mention(self, node: ast.expr, scope: Scope, use: str) -> Chain | None:
        """Note a name and all that is asked of it; return it. What stands in brackets within it is visited later."""
        context = getattr(node, "ctx", None)
        if isinstance(context, (ast.Store, ast.Del)):
            if isinstance(node, ast.Name):
                scope.bind(node.id)
                return None
            use = STORED
        if isinstance(node, ast.Call) and _is_call_of(node, ("setattr", "delattr")):
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else "…"
            chain, calls, inside = self._spine(node.args[0], node.args[1:], last=(str(name),))
            use = STORED
        elif isinstance(node, ast.Call) and _is_call_of(node, ("hasattr",)):
            chain, calls, inside = self._spine(node.args[0], node.args[1:])
            use = ASKED
        else:
            chain, calls, inside = self._spine(node, ())
        self._later(inside, scope)
        self.source.mentions.append(Mention(node.lineno, scope, chain, use, calls))
        return chain

    def _assign(self, targets: Sequence[ast.expr], value: ast.expr | None, scope: Scope) -> None:
        """Note an assignment: what a name, or a field of self, is bound to is followed."""
        names = [target for target in targets if _is_followed(target)]
        others = [target for target in targets if not _is_followed(target)]
        self._later(others, scope)
        chains: list[Chain | None] = []
        for one in self._alternatives(value, scope):
            if isinstance(one, _SPINE):
                chains.append(self._mention(one, scope, VALUE if others else ALIAS))
            else:
                self._later([one], scope)
        for target in names:
            name = target.id if isinstance(target, ast.Name) else target.attr  # type: ignore[attr-defined]
            for chain in chains or [None]:
                if isinstance(target, ast.Name):
                    scope.bind(name, chain)
                if not isinstance(target, ast.Name) or scope.kind == "class":
                    self.source.fields.bind(name, chain, scope)

    def _alternatives(self, value: ast.expr | None, scope: Scope) -> list[ast.expr]:
        """Return what an expression may come to: itself, or the sides of `a if b else c` and `a or b`."""
        found: list[ast.expr] = []
        left = [value]
        while left:
            one = left.pop()
            if isinstance(one, ast.IfExp):
                self._ask(one.test, scope)
                left += [one.orelse, one.body]
            elif isinstance(one, ast.BoolOp):
                left += reversed(one.values)
            elif one is not None:
                found.append(one)
        return found

    def _ask(self, test: ast.expr, scope: Scope) -> None:
        """Note a condition: of a name that is only compared with None, or taken as true or false, nothing is handed on."""
        left = [test]
        while left:
            one = left.pop()
            if isinstance(one, ast.BoolOp):
                left += reversed(one.values)
            elif isinstance(one, ast.UnaryOp) and isinstance(one.op, ast.Not):
                left.append(one.operand)
            elif isinstance(one, ast.Compare) and all(isinstance(op, (ast.Is, ast.IsNot)) for op in one.ops):
                left += reversed([one.left, *one.comparators])
            elif isinstance(one, _SPINE):
                self._mention(one, scope, ASKED)
            else:
                self._later([one], scope)

    def _see_Assign(self, node: ast.Assign, scope: Scope) -> None:
        self._assign(node.targets, node.value, scope)

    def _see_AnnAssign(self, node: ast.AnnAssign, scope: Scope) -> None:
        self._assign([node.target], node.value, scope)
        self._later([node.annotation], scope)

    def _see_NamedExpr(self, node: ast.NamedExpr, scope: Scope) -> None:
        self._assign([node.target], node.value, scope)

    def _see_AugAssign(self, node: ast.AugAssign, scope: Scope) -> None:
        """Note that what a name stands for is changed in place by `|=` and the like; others give it a new number or text."""
        if isinstance(node.target, ast.Name) and isinstance(node.op, (ast.BitOr, ast.BitAnd, ast.BitXor)):
            self.source.mentions.append(Mention(node.lineno, scope, (node.target.id, "[]"), STORED))
        self._later([node.target, node.value], scope)

    # -- imports -------------------------------------------------------------------------------------------------------

    def _see_Import(self, node: ast.Import, scope: Scope) -> None:
        for alias in node.names:
            parts = alias.name.split(".")
            self._import(node.lineno, (MODULE, *parts))
            if alias.asname:
                self._bind_import(alias.asname, (MODULE, *parts), scope)
            else:
                self._bind_import(parts[0], (MODULE, parts[0]), scope)

    def _see_ImportFrom(self, node: ast.ImportFrom, scope: Scope) -> None:
        parts = node.module.split(".") if node.module else []
        module: Chain = (MODULE, *parts)
        if node.level:
            module = (OWN, *self._package[: len(self._package) - node.level + 1], *parts)
        self._import(node.lineno, module, tuple(alias.name for alias in node.names))
        for alias in node.names:
            if alias.name == "*":
                scope.stars.append(module)
            else:
                chain = (*module, alias.name)
                self.source.mentions.append(Mention(node.lineno, scope, chain, ALIAS))
                self._bind_import(alias.asname or alias.name, chain, scope)

    def _import(self, line: int, module: Chain, names: tuple[str, ...] = ()) -> None:
        self.source.imports.append(Import(line, module, names))

    def _bind_import(self, name: str, chain: Chain, scope: Scope) -> None:
        scope.bind(name, chain)
        if scope.kind == "class":
            self.source.fields.bind(name, chain)

    # -- scopes --------------------------------------------------------------------------------------------------------

    def _see_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        scope.bind(node.name)
        inner = Scope("def" if isinstance(node, ast.FunctionDef) else "async def", scope)
        self._later(node.body, inner)
        self._parameters(node.args, scope, inner)
        self._later([*node.decorator_list, node.returns], scope)

    _see_AsyncFunctionDef = _see_FunctionDef

    def _see_Lambda(self, node: ast.Lambda, scope: Scope) -> None:
        inner = Scope("lambda", scope)
        self._later([node.body], inner)
        self._parameters(node.args, scope, inner)

    def _parameters(self, arguments: ast.arguments, scope: Scope, inner: Scope) -> None:
        several = [one for one in (arguments.vararg, arguments.kwarg) if one]
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *several]
        for argument in every:
            inner.bind(argument.arg)
        self._later([*arguments.defaults, *arguments.kw_defaults, *(one.annotation for one in every)], scope)

    def _see_ClassDef(self, node: ast.ClassDef, scope: Scope) -> None:
        scope.bind(node.name)
        if scope is self.source.top:
            self.source.classes.setdefault(node.name, []).append(_class(node, scope))
        self._later(node.body, Scope("class", scope))
        self._later([*node.decorator_list, *node.bases, *node.keywords], scope)

    def _see_Global(self, node: ast.Global, scope: Scope) -> None:
        scope.elsewhere.update(dict.fromkeys(node.names, self.source.top))

    def _see_Nonlocal(self, node: ast.Nonlocal, scope: Scope) -> None:
        for name in node.names:
            outer = scope.outer
            while outer is not None and outer.outer is not None and name not in outer.bound:
                outer = outer.outer
            scope.elsewhere[name] = outer or self.source.top

    # -- what binds names, and what does not run -------------------------------------------------------------------------

    def _see_ExceptHandler(self, node: ast.ExceptHandler, scope: Scope) -> None:
        self._bind_and_go_on(node, node.name, scope)

    def _see_MatchAs(self, node: ast.MatchAs, scope: Scope) -> None:
        self._bind_and_go_on(node, node.name, scope)

    def _see_MatchStar(self, node: ast.MatchStar, scope: Scope) -> None:
        self._bind_and_go_on(node, node.name, scope)

    def _see_MatchMapping(self, node: ast.MatchMapping, scope: Scope) -> None:
        self._bind_and_go_on(node, node.rest, scope)

    def _bind_and_go_on(self, node: ast.AST, name: str | None, scope: Scope) -> None:
        if name:
            scope.bind(name)
        self._later(ast.iter_child_nodes(node), scope)

    def _see_If(self, node: ast.If, scope: Scope) -> None:
        """Leave out what is there for type checkers, and what runs only where the file is executed as a program."""
        if _never(node.test):
            self._later(node.orelse, scope)
        else:
            self._later([*node.body, *node.orelse], scope)
            self._ask(node.test, scope)

    def _see_IfExp(self, node: ast.IfExp, scope: Scope) -> None:
        self._later([node.body, node.orelse], scope)
        self._ask(node.test, scope)

    def _see_Raise(self, node: ast.Raise, scope: Scope) -> None:
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        if isinstance(raised, ast.Name) and raised.id == "SystemExit":
            self.source.exits.append(node.lineno)
        self._later([node.exc, node.cause], scope)

    def _spine(
        self, node: ast.expr, inside: Sequence[ast.AST], last: Chain = ()
    ) -> tuple[Chain, tuple[tuple[int, Call], ...], list[ast.AST]]:
        """Return the chain of an expression with `last` behind it, its calls, and what stands in brackets within it."""
        parts: list[str] = [*reversed(last)]
        calls: list[tuple[int, Call]] = []
        rest = [*inside]
        root: Chain = ("",)
        while root == ("",):
            if isinstance(node, ast.Attribute):
                parts.append(node.attr)
                node = node.value
            elif isinstance(node, ast.Subscript):
                parts.append("[]")
                rest.append(node.slice)
                node = node.value
            elif isinstance(node, ast.Name):
                root = (node.id,)
            elif not isinstance(node, ast.Call):
                rest.append(node)
                break
            elif _is_call_of(node, ("getattr",)) and _is_text(node.args[1]):
                parts.append(node.args[1].value)  # type: ignore[attr-defined]
                rest += node.args[2:]
                node = node.args[0]
            elif _is_vars(node):
                parts.append("__dict__")
                node = node.args[0]
            elif _imports_by_name(node):
                root = (MODULE, *node.args[0].value.split("."))  # type: ignore[attr-defined]
                self._import(node.lineno, root)
            else:
                parts.append("()" if _asks_for_nothing(node) else "(…)")
                calls.append((len(parts), _call(node)))
                rest += [*node.args, *node.keywords]
                node = node.func
        end = len(root) + len(parts)
        chain = (*root, *reversed(parts))[:_LONGEST]
        return chain, tuple((end - length, call) for length, call in calls if end - length < len(chain)), rest


def _call(node: ast.Call) -> Call:
    if not node.args and not node.keywords:
        return _NOTHING
    return Call(
        _told(node.args[0]) if node.args else None,
        len(node.args),
        any(isinstance(argument, ast.Starred) for argument in node.args),
        {keyword.arg: _told(keyword.value) for keyword in node.keywords} if node.keywords else _NOTHING.named,
    )


def _told(node: ast.expr) -> object:
    if isinstance(node, ast.Constant):
        return node.value if not isinstance(node.value, (str, bytes)) or len(node.value) < 100 else UNTOLD
    if isinstance(node, (ast.Name, ast.Attribute)):
        return f".{node.id if isinstance(node, ast.Name) else node.attr}"
    return UNTOLD


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_call_of(node: ast.AST, names: tuple[str, ...]) -> bool:
    """Return whether it calls one of these functions, with two arguments at least."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in names:
        return False
    return len(node.args) > 1 and not any(isinstance(argument, ast.Starred) for argument in node.args[:2])


def _is_vars(node: ast.Call) -> bool:
    named = isinstance(node.func, ast.Name) and node.func.id == "vars"
    return named and len(node.args) == 1 and not isinstance(node.args[0], ast.Starred)


def _imports_by_name(node: ast.Call) -> bool:
    """Return whether it is `import_module("name")`, which is as good as an import."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name != "import_module" or len(node.args) != 1 or node.keywords or not _is_text(node.args[0]):
        return False
    return not node.args[0].value.startswith(".")  # type: ignore[attr-defined]


def _asks_for_nothing(node: ast.Call) -> bool:
    """Return whether a call has no arguments, or one that stands for none, as in `getLogger("")`."""
    if not node.args and not node.keywords:
        return True
    values = [*node.args, *(keyword.value for keyword in node.keywords)]
    return len(values) == 1 and isinstance(values[0], ast.Constant) and values[0].value in _ROOT_LOGGER


def _is_followed(target: ast.expr) -> bool:
    """Return whether it is a name, or an attribute of `self` or `cls`."""
    inner = target.value if isinstance(target, ast.Attribute) else None
    return isinstance(target, ast.Name) or (isinstance(inner, ast.Name) and inner.id in ("self", "cls"))


def _never(test: ast.expr) -> bool:
    """Return whether a condition never holds in a server: `TYPE_CHECKING`, `__name__ == "__main__"`."""
    if isinstance(test, ast.Compare):
        sides = [test.left, *test.comparators]
        names = [side.id for side in sides if isinstance(side, ast.Name)]
        values = [side.value for side in sides if isinstance(side, ast.Constant)]
        return names == ["__name__"] and values == ["__main__"] and isinstance(test.ops[0], ast.Eq)
    return getattr(test, "attr", getattr(test, "id", "")) == "TYPE_CHECKING"


def _class(node: ast.ClassDef, scope: Scope) -> Class:
    found = Class(scope, [_name(base) for base in node.bases])
    for statement in node.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            undecorated = not statement.decorator_list
            found.methods[statement.name] = isinstance(statement, ast.AsyncFunctionDef) if undecorated else None
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            found.methods.update({target.id: None for target in targets if isinstance(target, ast.Name)})
        elif not isinstance(statement, (ast.Expr, ast.ClassDef)):
            inner = (one for one in ast.walk(statement) if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)))
            found.methods.update({one.name: None for one in inner})
    return found


def _name(node: ast.expr) -> Chain | None:
    """Return a dotted name as a chain; None for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id, *reversed(parts)) if isinstance(node, ast.Name) else None
