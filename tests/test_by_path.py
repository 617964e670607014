"""Every call that reaches a file by its path has a stated reason.

A path is resolved anew by each call, so whoever can write a directory on the way decides what is opened: the agent in
its workspace, the author of a folder or repository. Files in such trees are reached through a descriptor and without
following links (`root.py`, `foreign.py` and `parts.py` in `system/files`). This test reads the source, finds every call
that takes a path instead, and compares it with `by_path.toml`: a new one needs a line there, which says in whose tree
the path lies and why that is safe.

A function that only passes a path on stands in a group with `passed = true`: then each call of it counts like a call of
`open`, so that a helper hides nobody's path.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "workstead"
TABLE = Path(__file__).with_name("by_path.toml")

OF_OS = """access chdir chmod chown chroot getxattr lchown link listdir listxattr lstat makedirs mkdir mkfifo mknod open
    pathconf readlink remove removedirs removexattr rename renames replace rmdir scandir setxattr stat statvfs symlink
    truncate unlink utime walk fwalk lchmod chflags"""
OF_PATH = "exists getatime getctime getmtime getsize isdir isfile islink ismount lexists realpath samefile"
OF_LIBC = """chown fspick inotify_add_watch lsetxattr mount move_mount name_to_handle_at open open_tree openat
    pivot_root quotactl removexattr setxattr statx swapon umount umount2 unlink"""
BY_PATH = {
    "open",
    "io.open",
    "sqlite3.connect",
    *(f"os.{name}" for name in OF_OS.split()),
    *(f"os.path.{name}" for name in OF_PATH.split()),
    *(f"workstead.system.kernel.libc.libc.{name}" for name in OF_LIBC.split()),
}
MODULES = ("glob.", "pathlib.", "shutil.", "tempfile.", "zipfile.")  # every function of theirs
HARMLESS = {"shutil.get_terminal_size", "shutil.which", "shutil.copyfileobj"}
# Calls that act on the last name itself. Any other call with a `dir_fd` must say that it does not follow a link.
NEVER_FOLLOW = {
    f"os.{name}" for name in "lstat mkdir mkfifo mknod readlink remove rename replace rmdir symlink unlink".split()
}
DIRECTORIES = {"dir_fd", "src_dir_fd", "dst_dir_fd"}
KERNEL_NAME = "/proc/self/fd/"


class Scan(ast.NodeVisitor):
    """Collects (function, call) for each use of a function that takes a path in one module."""

    def __init__(self, module: str, tree: ast.Module, passed: frozenset[str] = frozenset()) -> None:
        self.found: list[tuple[str, str, int]] = []
        self._module = module
        self._passed = passed
        self._within: list[ast.AST] = [tree]
        self._names = dict(_imports(tree))
        self._names |= {node.name: f"{module}.{node.name}" for node in tree.body if isinstance(node, ast.FunctionDef)}
        self.visit(tree)

    def _enter(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        for outside in (*node.decorator_list, *([] if isinstance(node, ast.ClassDef) else [node.args])):
            self.visit(outside)
        self._within.append(node)
        for child in node.body:
            self.visit(child)
        self._within.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _enter  # noqa: N815

    def visit_Call(self, node: ast.Call) -> None:
        name = self._dotted(node.func)
        if self._takes_path(name):
            if not self._is_by_descriptor(name, node):
                self._add(name, node)
        else:
            self.visit(node.func)
        for child in (*node.args, *node.keywords):
            self.visit(child)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """A function that is handed on, as in `map(os.stat, paths)`."""
        if self._takes_path(self._dotted(node)):
            self._add(self._dotted(node), node)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and self._takes_path(self._dotted(node)):
            self._add(self._dotted(node), node)

    def _add(self, name: str, node: ast.AST) -> None:
        function = ".".join(level.name for level in self._within if hasattr(level, "name"))
        self.found.append((function, name, node.lineno))  # type: ignore[attr-defined]

    def _takes_path(self, name: str) -> bool:
        return name in BY_PATH or name in self._passed or (name.startswith(MODULES) and name not in HARMLESS)

    def _dotted(self, node: ast.expr) -> str:
        """The full name of what is called, imports and their aliases resolved."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            return f"{self._dotted(node.value)}.{node.attr}"
        return "?"

    def _is_by_descriptor(self, name: str, call: ast.Call) -> bool:
        words = {word.arg: word.value for word in call.keywords}
        if name in self._passed:
            return bool(call.args) and self._is_integer(call.args[0])
        if not name.startswith(("os.", "open")):
            return False
        directories = DIRECTORIES & words.keys()
        if directories:
            wanted = {"src_dir_fd", "dst_dir_fd"} if name in ("os.rename", "os.replace", "os.link") else directories
            return (
                wanted == directories
                and not any(self._may_be_none(words[word]) for word in directories)
                and (name in NEVER_FOLLOW or self._says_no_follow(call, words))
            )
        return bool(call.args) and self._is_descriptor(call.args[0])

    def _may_be_none(self, directory: ast.expr) -> bool:
        """A `dir_fd` is an integer for mypy, or None, which is the current directory."""
        if isinstance(directory, ast.Attribute):
            return directory.attr in optional_attributes()
        if isinstance(directory, ast.Name):
            for level in reversed(self._within):
                values = list(_values(level, directory.id))
                if values:
                    return any(value is None and directory.id in _optional(level) for value in values)
        return isinstance(directory, ast.Constant)

    def _says_no_follow(self, call: ast.Call, words: dict[str | None, ast.expr]) -> bool:
        if "follow_symlinks" in words:
            return ast.unparse(words["follow_symlinks"]) == "False"
        if isinstance(call.args[0], ast.Constant) and call.args[0].value in (".", b".", "..", b".."):
            return True
        return len(call.args) > 1 and self._has_no_follow(call.args[1])

    def _has_no_follow(self, flags: ast.expr) -> bool:
        if "O_NOFOLLOW" in ast.unparse(flags) or "O_EXCL" in ast.unparse(flags):  # O_EXCL: a link is an error too
            return "~os.O_NOFOLLOW" not in ast.unparse(flags)
        names = [node.id for node in ast.walk(flags) if isinstance(node, ast.Name)]
        values = [value for name in names for level in self._own_levels() for value in _values(level, name)]
        if values:
            return all(isinstance(value, ast.expr) and self._has_no_follow(value) for value in values)
        return any(name in no_follow_flags() for name in names)

    def _own_levels(self) -> tuple[ast.AST, ...]:
        """The function and its module, where constants are."""
        return self._within[-1], self._within[0]

    def _is_descriptor(self, argument: ast.expr) -> bool:
        """An integer, or the name that the kernel has for an open file, with nothing after it."""
        if isinstance(argument, ast.JoinedStr):
            match argument.values:
                case [ast.Constant(value=start), ast.FormattedValue(value=number)]:
                    return start == KERNEL_NAME and self._is_integer(number)
            return False
        return self._is_integer(argument)

    def _is_integer(self, node: ast.expr) -> bool:
        """Whether the source says so: an annotation, or a call of a function that returns an integer."""
        if isinstance(node, ast.Call):
            name = self._dotted(node.func)
            return (
                name in ("os.open", "os.dup", "os.memfd_create", "os.pidfd_open") or name.split(".")[-1] in integers()
            )
        if isinstance(node, ast.Attribute):
            return node.attr in integers()
        if not isinstance(node, ast.Name):
            return isinstance(node, ast.Constant) and isinstance(node.value, int)
        for level in reversed(self._within):
            values = list(_values(level, node.id))
            if values:
                return all(
                    value is int or (isinstance(value, ast.expr) and self._is_integer(value)) for value in values
                )
        return False


def _optional(level: ast.AST) -> set[str]:
    """Parameters of a function that may be None."""
    if not isinstance(level, ast.FunctionDef | ast.AsyncFunctionDef):
        return set()
    arguments = (*level.args.posonlyargs, *level.args.args, *level.args.kwonlyargs)
    return {item.arg for item in arguments if item.annotation is None or "None" in ast.unparse(item.annotation)}


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for item in node.names:
                yield (item.asname, item.name) if item.asname else (item.name.split(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom):
            for item in node.names:
                yield item.asname or item.name, f"{node.module}.{item.name}"


def _values(level: ast.AST, name: str) -> Iterator[object]:
    """What a name is bound to in a function: `int` for an annotation that says so, an expression, None if unknown."""
    if isinstance(level, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = level.args
        for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if item.arg == name:
                yield int if item.annotation is not None and _is_int(item.annotation) else None
    for node in _own_nodes(level):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    yield from _bound(target, value, name)
            case ast.AnnAssign(target=ast.Name(id=found), annotation=said) if found == name:
                yield int if _is_int(said) else None
            case ast.With(items=items) | ast.AsyncWith(items=items):
                for each in items:
                    if each.optional_vars is not None:
                        yield from _bound(each.optional_vars, each.context_expr, name)
            case ast.For(target=target) | ast.comprehension(target=target):
                if any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(target)):
                    yield None
            case ast.NamedExpr(target=ast.Name(id=found), value=value) if found == name:
                yield value


def _bound(target: ast.expr, value: ast.expr, name: str) -> Iterator[object]:
    if isinstance(target, ast.Name) and target.id == name:
        yield value
    elif isinstance(target, ast.Tuple | ast.List):
        for index, part in enumerate(target.elts):
            if not (isinstance(part, ast.Name) and part.id == name):
                continue
            if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
                yield value.elts[index]
            elif isinstance(value, ast.Call):
                called = ast.unparse(value.func).split(".")[-1]
                yield int if (called, index) in integers_in_tuples() or called in ("pipe", "pipe2") else None
            else:
                yield None


def _own_nodes(level: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of the functions in it."""
    for child in ast.iter_child_nodes(level):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield child
            yield from _own_nodes(child)


def _is_int(annotation: ast.expr) -> bool:
    return ast.unparse(annotation) in ("int", "Iterator[int]", "Generator[int]")


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax tree of each module, by its path."""
    return {str(file.relative_to(SOURCE)): ast.parse(file.read_text()) for file in sorted(SOURCE.rglob("*.py"))}


@cache
def integers() -> frozenset[str]:
    """Names of functions and attributes that are integers wherever the source declares them."""
    said: dict[str, set[bool]] = {"fileno": {True}}
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.returns is not None:
                said.setdefault(node.name, set()).add(_is_int(node.returns))
            if isinstance(node, ast.ClassDef):
                for name, value in _attributes(node):
                    said.setdefault(name, set()).add(value)
    return frozenset(name for name, answers in said.items() if answers == {True})


def _attributes(node: ast.ClassDef) -> Iterator[tuple[str, bool]]:
    """(name, whether it is declared an integer) for the attributes of a class."""
    for part in ast.walk(node):
        match part:
            case ast.AnnAssign(target=ast.Name(id=name) | ast.Attribute(attr=name), annotation=said):
                yield name, _is_int(said)
            case ast.FunctionDef(name="__init__", args=arguments):
                numbers = {
                    item.arg
                    for item in (*arguments.args, *arguments.kwonlyargs)
                    if item.annotation and _is_int(item.annotation)
                }
                for line in ast.walk(part):
                    match line:
                        case ast.Assign(targets=[ast.Attribute(attr=name)], value=ast.Name(id=given)):
                            yield name, given in numbers
                        case ast.Assign(targets=[ast.Attribute(attr=name)], value=value):
                            text = ast.unparse(value)
                            yield name, text.startswith(("os.open(", "os.dup(")) or text.lstrip("-").isdigit()


@cache
def optional_attributes() -> frozenset[str]:
    """Names of attributes that some class declares as perhaps None."""
    return frozenset(
        node.target.attr if isinstance(node.target, ast.Attribute) else node.target.id
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and "None" in ast.unparse(node.annotation)
        if isinstance(node.target, ast.Attribute | ast.Name)
    )


@cache
def integers_in_tuples() -> frozenset[tuple[str, int]]:
    """(function, index) where a function returns a tuple with an integer there."""
    said: dict[tuple[str, int], set[bool]] = {}
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and isinstance(node.returns, ast.Subscript):
                parts = node.returns.slice.elts if isinstance(node.returns.slice, ast.Tuple) else []
                for index, part in enumerate(parts):
                    said.setdefault((node.name, index), set()).add(_is_int(part))
    return frozenset(place for place, answers in said.items() if answers == {True})


@cache
def no_follow_flags() -> frozenset[str]:
    """Names of constants that hold O_NOFOLLOW, wherever the source assigns them."""
    said: dict[str, set[bool]] = {}
    for tree in trees().values():
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                said.setdefault(node.targets[0].id, set()).add(
                    bool({"O_NOFOLLOW", "O_EXCL"} & set(re.findall(r"\w+", ast.unparse(node.value))))
                )
    return frozenset(name for name, answers in said.items() if answers == {True})


def found() -> dict[str, set[str]]:
    """The functions of each module that have such a call."""
    result: dict[str, set[str]] = {}
    for path, tree in trees().items():
        for function, _, _ in Scan(module_of(path), tree, passed_on()).found:
            result.setdefault(path, set()).add(function)
    return result


def module_of(path: str) -> str:
    """The dotted name of a module."""
    return "workstead." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def passed_on() -> frozenset[str]:
    """Functions whose callers answer for the path."""
    groups = tomllib.loads(TABLE.read_text()).values()
    return frozenset(
        f"{module_of(path)}.{function}"
        for group in groups
        if group.get("passed")
        for path, functions in group.items()
        if path.endswith(".py")
        for function in functions
    )


def stated() -> dict[str, dict[str, str]]:
    """Module → function → reason. `*` stands for every function of a module."""
    result: dict[str, dict[str, str]] = {}
    for group in tomllib.loads(TABLE.read_text()).values():
        for module, functions in group.items():
            if module not in ("reason", "passed"):
                for function in functions:
                    assert function not in result.setdefault(module, {}), f"{module}: {function} stands there twice"
                    result[module][function] = group["reason"]
    return result


def test_every_access_by_path_has_its_reason() -> None:
    reasons = stated()
    missing = [
        f"{module}: {function}"
        for module, functions in found().items()
        for function in sorted(functions)
        if "*" not in reasons.get(module, {}) and function not in reasons.get(module, {})
    ]
    assert not missing, "open these by descriptor, or state in tests/by_path.toml why a path is safe:\n" + "\n".join(
        missing
    )


def test_no_reason_stands_for_something_that_is_gone() -> None:
    there = found()
    stale = [
        f"{module}: {function}"
        for module, functions in stated().items()
        for function in functions
        if module not in there or (function != "*" and function not in there[module])
    ]
    assert not stale, stale


@pytest.mark.parametrize(
    ("code", "is_by_path"),
    [
        ("def f(path: str): os.stat(path)", True),
        ("def f(fd: str): os.stat(fd)", True),  # a name proves nothing
        ("def f(fd: int): os.stat(fd)", False),
        ("def f(x: int | str): os.stat(x)", True),
        ("def f(path: str):\n    fd = os.open(path, 0)\n    os.stat(fd)", True),
        ("def f(a: str):\n    fd = os.dup(3)\n    os.stat(fd)", False),
        ("def f(a: str):\n    fd = os.dup(3)\n    fd = a\n    os.stat(fd)", True),
        ("def f(name: str, top: int): os.stat(name, dir_fd=top, follow_symlinks=False)", False),
        ("def f(name: str, top: int): os.stat(name, dir_fd=top)", True),  # follows a link at the end
        ("def f(name: str, top: int | None): os.lstat(name, dir_fd=top)", True),  # None is the current directory
        ("def f(name: str, top: int): os.open(name, os.O_RDONLY, dir_fd=top)", True),
        ("def f(name: str, top: int): os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=top)", False),
        ("def f(name: str, top: int): os.open(name, F & ~os.O_NOFOLLOW, dir_fd=top)", True),
        ("def f(name: str, top: int): os.unlink(name, dir_fd=top)", False),
        ("def f(a: str, b: str, x: int): os.rename(a, b, src_dir_fd=x)", True),
        ("def f(a: str, b: str, x: int): os.rename(a, b, src_dir_fd=x, dst_dir_fd=x)", False),
        ("def f(fd: int): os.listdir(f'/proc/self/fd/{fd}')", False),
        ("def f(fd: int, name: str): os.stat(f'/proc/self/fd/{fd}/{name}')", True),
        ("def f(path: str): open(path)", True),
        ("def f(fd: int): open(fd, 'rb')", False),
        ("import os.path as p\ndef f(path: str): p.isdir(path)", True),
        ("from os import stat as look\ndef f(path: str): look(path)", True),
        ("from os.path import exists\ndef f(path: str): exists(path)", True),
        ("import shutil as s\ndef f(a: str, b: str): s.copytree(a, b)", True),
        ("from pathlib import Path\ndef f(x: str): Path(x).read_text()", True),
        ("def f(paths: list[str]): return list(map(os.stat, paths))", True),
        (
            "from workstead.system.overlay.copying import copy_tree\ndef f(a: str): copy_tree(a, a)",
            True,
        ),  # passes a path on
        ("from workstead.system.overlay.copying import copy_tree\ndef f(a: int): copy_tree(a, '')", False),
        ("def f(a: str): os.getpid()", False),
    ],
)
def test_a_call_by_path_is_told_from_one_by_descriptor(code: str, is_by_path: bool) -> None:
    assert bool(Scan("workstead.example", ast.parse(f"import os\n{code}\n"), passed_on()).found) == is_by_path
