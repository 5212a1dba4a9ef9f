"""Names of a package, each loaded when it is used first.

Nothing else is imported here: each of a client's processes pays for it.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, names: Mapping[str, str], modules: Mapping[str, str] = {}
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the ``__getattr__`` and ``__dir__`` of a package that loads names when used.

    Args:
        package: its ``__name__``.
        names: by module of the package the names that it has, separated by spaces.
        modules: by name the module of the package that it stands for.
    """
    homes = {name: home for home, of_one in names.items() for name in of_one.split()}

    def get(name: str) -> Any:  # noqa: ANN401 - a class, a function or a module
        if name in modules:
            found: Any = import_module(f"{package}.{modules[name]}")
        elif name in homes:
            found = getattr(import_module(f"{package}.{homes[name]}"), name)
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, found)
        return found

    def names_of() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes, *modules})

    return get, names_of
