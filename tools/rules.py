"""Check the project's own rules, which no other tool knows: `python tools/rules.py`."""

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PACKAGES = ("fcl_flower", "strategies", "clients")
UNMARKED = re.compile(r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\))")
SOMEBODYS = re.compile(r"""(?<![\w.<])/(work|home|root|Users|mnt|opt)/|[A-Z]:\\""")
TEXTS = {".py", ".toml", ".md", ".css", ".txt", ".cfg", ".yaml", ".yml"}
OF_RULES = {"rules.py", "test_rules.py"}
OFFERED = {"app", "serverapp", "clientapp", "simulation"}
"""The parts of Flower that its documentation offers to users."""
# Not installed everywhere, and of another name than what is imported.
DISTRIBUTIONS = {"mlflow": ["mlflow-skinny"]}
FRAGMENT = re.compile(
    r"\s*(After|As|Before|Beside|Between|By|For|From|How|If|In|Of|Since|So|That|To|Under"
    r"|What|When|Where|Which|Who|Whose|Why|With|Without)\b"
)
"""The words that begin no docstring: with them it is no sentence and no noun."""


class Project:
    """The files of a project, parsed once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.trees = {
            path: ast.parse(path.read_text())
            for name in PACKAGES
            for path in sorted((root / name).rglob("*.py"))
        }

    def texts(self) -> Iterator[Path]:
        """Yield every file that people write, but this one and what tests it."""
        folders = [*PACKAGES, "tests", "tools", "experiments", "docker", "docs", ".ci"]
        found = [self.root / "Makefile", *self.root.glob("*.*")]
        for folder in [*folders, "examples"]:
            found += (self.root / folder).rglob("*")
        for path in found:
            known = path.suffix in TEXTS or path.name in {"Makefile", "run"}
            if path.is_file() and known and path.name not in OF_RULES:
                yield path

    def requirements(self) -> list[Requirement]:
        """List the packages that the project file names, with those of its extras."""
        project = tomllib.loads((self.root / "pyproject.toml").read_text())["project"]
        groups = [project["dependencies"], *project["optional-dependencies"].values()]
        return [Requirement(text) for group in groups for text in group]


def imports(tree: ast.AST) -> Iterator[tuple[str, str | None]]:
    """Yield each imported module, with the name that is taken from it, if any."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


def undocumented(project: Project) -> Iterator[str]:
    """Find modules that do not say what they are for."""
    for path, tree in project.trees.items():
        if not ast.get_docstring(tree):
            yield f"{path}: has no docstring"


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield docstrings, and the strings after assignments in a class or module."""
    functions = ast.FunctionDef, ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, *functions)):
            continue
        named = () if isinstance(node, functions) else (ast.Assign, ast.AnnAssign)
        for before, statement in zip([None, *node.body], node.body, strict=False):
            match statement:
                case ast.Expr(ast.Constant(str()) as text) if (
                    before is None or isinstance(before, named)
                ):
                    yield text


def fragments(project: Project) -> Iterator[str]:
    """Find docstrings that begin with a preposition or a relative word."""
    for path, tree in project.trees.items():
        for text in docstrings(tree):
            if first := FRAGMENT.match(str(text.value)):
                yield (
                    f"{path}:{text.lineno}: the docstring begins with {first[1]!r}, "
                    "expected a verb, a noun with its article or a whole sentence"
                )


def unmarked_and_private(project: Project) -> Iterator[str]:
    """Find work left without an issue, and paths of somebody's machine."""
    for path in project.texts():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if path.suffix == ".py" and UNMARKED.search(line):
                yield f"{path}:{number}: write TODO(#issue)"
            if SOMEBODYS.search(line):
                yield f"{path}:{number}: names a place on somebody's machine"


def unpinned(project: Project) -> Iterator[str]:
    """Find dependencies whose pin is missing or outside of their range."""
    pins = {}
    for line in (project.root / "constraints.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, version = line.split("==")
            pins[canonicalize_name(name)] = version
    for wanted in project.requirements():
        pin = pins.get(canonicalize_name(wanted.name))
        if pin is None or not wanted.specifier.contains(pin):
            yield f"constraints.txt: {wanted} is pinned to {pin}"


def undeclared(project: Project) -> Iterator[str]:
    """Find packages that are imported, but not named in the project file."""
    declared = {canonicalize_name(wanted.name) for wanted in project.requirements()}
    distributions = DISTRIBUTIONS | packages_distributions()
    ours = {*PACKAGES, *sys.stdlib_module_names}
    for path, tree in project.trees.items():
        for name in {module.partition(".")[0] for module, _ in imports(tree)} - ours:
            known = map(canonicalize_name, distributions.get(name, [name]))
            if declared.isdisjoint(known):
                yield f"{path}: imports {name}, which is not declared"


def private_of_flower(project: Project) -> Iterator[str]:
    """Find modules that use more of Flower than it offers, but for those that may."""
    speedups = Path("fcl_flower", "deploy", "speedups")
    for path, tree in project.trees.items():
        if path.is_relative_to(project.root / speedups):
            continue
        for module, _ in imports(tree):
            first, _, rest = module.partition(".")
            if first == "flwr" and rest.partition(".")[0] not in OFFERED:
                yield f"{path}: imports {module}, which only {speedups} may"


def crossing(project: Project) -> Iterator[str]:
    """Find client sides that import a server side, or a module in which one is."""
    servers, modules = {"ServerStrategy"}, {}
    sides = [p for p in project.trees if p.is_relative_to(project.root / "strategies")]
    classes = [
        (path, node.name, {ast.unparse(b).partition("[")[0] for b in node.bases})
        for path, tree in project.trees.items()
        if not path.is_relative_to(project.root / "clients")
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    ]
    while found := {n for _, n, bases in classes if bases & servers} - servers:
        servers |= found
    for path in sides:
        names = path.relative_to(project.root).with_suffix("").parts
        module = ".".join(names).removesuffix(".__init__")
        own = {name for place, name, _ in classes if place == path}
        taken = {name for _, name in imports(project.trees[path])}
        modules[module] = (own | taken) & servers
    for path, tree in project.trees.items():
        if not path.is_relative_to(project.root / "clients"):
            continue
        for module, name in imports(tree):
            whole = modules.get(f"{module}.{name}" if name else module)
            if module.startswith("strategies") and (whole or name in servers):
                yield f"{path}: imports a server side, {name or module}"


RULES: list[Callable[[Project], Iterator[str]]] = [
    undocumented,
    fragments,
    unmarked_and_private,
    unpinned,
    undeclared,
    private_of_flower,
    crossing,
]


def broken(root: Path) -> list[str]:
    """List what breaks a rule, each with its file."""
    project = Project(root)
    return [line.removeprefix(f"{root}/") for rule in RULES for line in rule(project)]


if __name__ == "__main__":
    found = broken(Path(__file__).resolve().parents[1])
    print("\n".join(found) or "the project's rules are kept")
    sys.exit(bool(found))
