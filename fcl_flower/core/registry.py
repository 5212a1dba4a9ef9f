"""Registries of things that a user chooses by name, such as models."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar, cast

from fcl_flower.core.errors import (
    ContractError,
    PluginWarning,
    config_error,
    unknown_name,
)

T = TypeVar("T")


class Registry(Generic[T]):
    """A registry of things that are built in, from packages, or of this process.

    Another package declares its things under an entry point group. An entry point is
    loaded when its name is looked up. Built-in things cannot be replaced.
    """

    def __init__(
        self, key: str, group: str, kind: type[Any], built_in: Mapping[str, T]
    ) -> None:
        """Begin with the built-in things.

        Args:
            key: the setting whose values are the names, for error messages.
            group: the group of the entry points, such as ``fcl_flower.models``.
            kind: the type that each entry point has to give.
            built_in: the built-in things by name; the mapping is read at each call.
        """
        self._key, self._group, self._kind = key, group, kind
        self._built_in = built_in
        self._registered: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        """Return the thing of a name, loading it if an entry point has the name.

        Raises:
            ConfigError: the name is unknown; the message lists the nearest names.
            ContractError: the entry point cannot be loaded, or gives another type.
        """
        for things in (self._built_in, self._registered):
            if name in things:
                return things[name]
        points = self._entry_points()
        if name not in points:
            raise unknown_name(self._key, name, sorted(self))
        return self._load(points[name])

    def __contains__(self, name: object) -> bool:
        """Tell whether a name is known, without loading the thing."""
        return any(name == listed for listed in self)

    def __iter__(self) -> Iterator[str]:
        """Yield all names: of built-in things, of packages, and of this process."""
        names = (*self._built_in, *self._entry_points(), *self._registered)
        return iter(dict.fromkeys(names))

    def items(self) -> Iterator[tuple[str, T]]:
        """Yield all names with their things; this loads every entry point.

        An entry point is left out if it cannot be loaded, gives another type, or has
        the name of a built-in thing. A `PluginWarning` names it.
        """
        yield from self._built_in.items()
        for name, point in self._entry_points().items():
            try:
                if name in self._built_in:
                    raise ContractError(
                        f"entry point {name} of {self._group}: got the name of a "
                        "built-in thing, expected a name of its own"
                    )
                yield name, self._load(point)
            except ContractError as error:
                warnings.warn(f"{error}; it is left out", PluginWarning, stacklevel=2)
        yield from self._registered.items()

    @contextmanager
    def registered(self, name: str, thing: T) -> Iterator[None]:
        """Register a thing in this process while the context lasts."""
        if name in self:
            raise config_error(self._key, name, "a name that is not taken")
        self._registered[name] = thing
        try:
            yield
        finally:
            del self._registered[name]

    def _entry_points(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self._group)}

    def _load(self, point: EntryPoint) -> T:
        try:
            thing = point.load()
        except Exception as error:  # another package may raise anything
            raise ContractError(
                f"entry point {point.name} of {self._group} cannot be loaded: {error!r}"
            ) from error
        if not isinstance(thing, self._kind):
            raise ContractError(
                f"entry point {point.name} of {self._group}: got a "
                f"{type(thing).__name__}, expected a {self._kind.__name__}"
            )
        return cast(T, thing)
