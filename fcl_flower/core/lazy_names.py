"""Names of a package that are loaded when they are first used.

This module imports little, since each of a client's processes pays for it.
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
        package: the package's ``__name__``.
        names: each module of the package to its public names, separated by spaces.
        modules: each public name of a module to the module.
    """
    homes = {name: home for home, listed in names.items() for name in listed.split()}

    def get(name: str) -> Any:  # noqa: ANN401 - a class, a function or a module
        if name in modules:
            value: Any = import_module(f"{package}.{modules[name]}")
        elif name in homes:
            value = getattr(import_module(f"{package}.{homes[name]}"), name)
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    def names_of() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes, *modules})

    return get, names_of
