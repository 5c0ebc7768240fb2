"""`python -m tests.architecture`: prints the shape of the code, and fails where it breaks a rule of its layout."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from statistics import median

import click
import grimp

TOP = Path(__file__).parents[1]
PACKAGE = TOP / "orchestrator" / "cantata"
PACKAGES = (PACKAGE, TOP / "orchestrator" / "cantata_frontends", TOP / "workers" / "cantata_workers")

MAX_METHODS = 15  # of a class, those that begin with an underscore not counted
DOCUMENTED = frozenset({"Batches", "ChainBuilder", "Client", "Conversation", "RunReader", "TenantClient", "Workflow"})
"""Classes with more methods, since they are doors: two of other systems, our client, its parts, the reader of runs, commands of flows."""
FRONTENDS = ("cantata_frontends", "cantata_workers.frontends")
MAY_IMPORT_FRONTENDS = FRONTENDS

FRONTEND_NAMES = re.compile("agentchain|chainbuilder|diskurs|langswarm|promptchain", re.IGNORECASE)
MAY_NAME_FRONTENDS = (
    "orchestrator/cantata_frontends/",
    "workers/cantata_workers/frontends/",
    "orchestrator/cantata/__init__.py",
)
"""Where these names may stand: the frontends themselves, and the public names of the package, some of which are theirs."""

QUESTIONS = ("What", "Who", "Whose", "How", "Whether", "Where", "When", "Why")
"""No docstring begins with one of these."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> dict[Path, ast.Module]:
    """Return the modules of the packages, parsed."""
    return {path: ast.parse(path.read_text("utf-8")) for package in PACKAGES for path in sorted(package.rglob("*.py"))}


@cache
def nodes_of(tree: ast.Module) -> list[ast.AST]:
    """Return all nodes of a module, for all rules: to walk it takes longer than they do."""
    return list(ast.walk(tree))


def functions_of(tree: ast.Module) -> Iterator[Function]:
    """Yield all functions and methods of a module."""
    yield from (node for node in nodes_of(tree) if isinstance(node, Function))


def classes_of(tree: ast.Module) -> Iterator[ast.ClassDef]:
    """Yield all classes of a module."""
    yield from (node for node in nodes_of(tree) if isinstance(node, ast.ClassDef))


def methods_of(node: ast.ClassDef) -> list[str]:
    """Return the names of a class's public methods."""
    return [each.name for each in node.body if isinstance(each, Function) and not each.name.startswith("_")]


# --- rules ----------------------------------------------------------------------------------------------------------


def class_names_used_twice(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Yield the class names that two modules define."""
    places = defaultdict(list)
    for path, tree in trees.items():
        for node in classes_of(tree):
            places[node.name].append(str(path.relative_to(TOP)))
    yield from (
        f"class {name} is defined in {' and '.join(paths)}" for name, paths in sorted(places.items()) if len(paths) > 1
    )


def classes_that_are_too_large(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Yield the classes with too many public methods."""
    for path, tree in trees.items():
        for node in classes_of(tree):
            if (count := len(methods_of(node))) > MAX_METHODS and node.name not in DOCUMENTED:
                yield f"{path.relative_to(TOP)}: class {node.name} has {count} public methods"


def questions(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Yield the docstrings that begin with a question word."""
    for path, tree in trees.items():
        for node in nodes_of(tree):
            if isinstance(node, ast.Module | ast.ClassDef | Function) and (ast.get_docstring(node) or "").startswith(
                QUESTIONS
            ):
                yield f"{path.relative_to(TOP)}: the docstring of {getattr(node, 'name', 'the module')} begins with a question word"


def imports_of_frontends(graph: grimp.ImportGraph) -> Iterator[str]:
    """Yield the imports of frontends by the core."""
    for importer in graph.modules:
        if importer.startswith(MAY_IMPORT_FRONTENDS) or importer == "cantata":
            continue
        for imported in graph.find_modules_directly_imported_by(importer):
            if imported.startswith(FRONTENDS):
                yield f"{importer} imports {imported}"


def names_of_frontends(texts: dict[Path, str]) -> Iterator[str]:
    """Yield the lines of the core, in code or comments, that name a frontend."""
    for path, text in texts.items():
        name = path.relative_to(TOP).as_posix()
        if not name.startswith(MAY_NAME_FRONTENDS):
            for number, line in enumerate(text.splitlines(), 1):
                if found := FRONTEND_NAMES.search(line):
                    yield f"{name}:{number} names the frontend {found[0]!r}; describe the behaviour"


def cycles(graph: grimp.ImportGraph) -> Iterator[str]:
    """Yield a cycle of imports, if there is one."""
    own = {
        module for module in graph.modules if module.startswith(("cantata.", "cantata_frontends.", "cantata_workers."))
    }
    try:
        TopologicalSorter({module: graph.find_modules_directly_imported_by(module) & own for module in own}).prepare()
    except CycleError as error:
        yield f"a cycle of imports: {' -> '.join(error.args[1])}"


# --- figures --------------------------------------------------------------------------------------------------------


def figures(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Yield a line for each measure of the code."""
    lines = {path: len(path.read_text("utf-8").splitlines()) for path in trees}
    lengths = {
        (path, node.name): (node.end_lineno or node.lineno) - node.lineno + 1
        for path, tree in trees.items()
        for node in functions_of(tree)
    }
    methods = {node.name: len(methods_of(node)) for tree in trees.values() for node in classes_of(tree)}
    longest_file, longest_function = (
        max(lines, key=lambda path: lines[path]),
        max(lengths, key=lambda each: lengths[each]),
    )
    most_methods = max(methods, key=lambda name: methods[name])
    lua = sum(len(path.read_text("utf-8").splitlines()) for path in PACKAGE.rglob("*.lua"))
    yield f"{len(trees)} modules, {sum(lines.values()):,} lines of Python; {lua:,} lines of Lua"
    yield f"a module: median {median(lines.values()):.0f} lines, longest {lines[longest_file]} ({longest_file.relative_to(TOP)})"
    yield f"a function: median {median(lengths.values()):.0f} lines, longest {lengths[longest_function]} ({longest_function[1]})"
    yield f"a class: at most {methods[most_methods]} public methods ({most_methods})"
    stems = Counter(path.stem for path in trees if not path.stem.startswith("__"))
    yield f"{sum(count > 1 for count in stems.values())} module names are used twice"


def main() -> int:
    """Print the figures and every breach; return 1 if there is one."""
    trees, graph = (
        sources(),
        grimp.build_graph(
            "cantata", "cantata_frontends", "cantata_workers", cache_dir=None, exclude_type_checking_imports=True
        ),
    )
    click.echo("\n".join(figures(trees)))
    breaches = [
        *class_names_used_twice(trees), *classes_that_are_too_large(trees),
        *questions(trees), *names_of_frontends({path: path.read_text("utf-8") for path in trees}),
        *imports_of_frontends(graph), *cycles(graph),
    ]  # fmt: skip
    for breach in breaches:
        click.echo(breach)
    click.echo(f"{len(breaches)} breaches of the layout" if breaches else "The layout is sound")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
