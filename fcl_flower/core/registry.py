"""Things that a user chooses by name, from wherever they come."""

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
    """Things by name: built in, of installed packages, or registered in this process.

    Another package declares its things under an entry point group; one is loaded when
    it is asked for. What is built in cannot be replaced.
    """

    def __init__(
        self, key: str, group: str, kind: type[Any], built_in: Mapping[str, T]
    ) -> None:
        """Begin with the built-in things.

        Args:
            key: the setting whose values are the names, for errors.
            group: of the entry points, such as ``fcl_flower.models``.
            kind: the type that an entry point has to give.
            built_in: by name; read at each call.
        """
        self._key, self._group, self._kind = key, group, kind
        self._built_in = built_in
        self._registered: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        """Load the thing of a name.

        Raises:
            ConfigError: there is none of that name; the message lists the nearest.
            ContractError: an entry point cannot be loaded, or gives something else.
        """
        for known in (self._built_in, self._registered):
            if name in known:
                return known[name]
        points = self._entry_points()
        if name not in points:
            raise unknown_name(self._key, name, sorted(self))
        return self._load(points[name])

    def __contains__(self, name: object) -> bool:
        """Tell whether there is such a thing, without loading it."""
        return any(name == known for known in self)

    def __iter__(self) -> Iterator[str]:
        """Yield all names: built in, of packages, and of this process."""
        names = (*self._built_in, *self._entry_points(), *self._registered)
        return iter(dict.fromkeys(names))

    def items(self) -> Iterator[tuple[str, T]]:
        """Yield all things by name; loads every entry point.

        One that cannot be loaded, gives something else, or has the name of what is
        built in, is left out with a `PluginWarning` that names it.
        """
        yield from self._built_in.items()
        for name, point in self._entry_points().items():
            try:
                if name in self._built_in:
                    raise ContractError(
                        f"entry point {name} of {self._group}: got the name of what is "
                        "built in, expected a name of its own"
                    )
                yield name, self._load(point)
            except ContractError as error:
                warnings.warn(f"{error}; it is left out", PluginWarning, stacklevel=2)
        yield from self._registered.items()

    @contextmanager
    def registered(self, name: str, thing: T) -> Iterator[None]:
        """Register a thing in this process alone, for as long as the context lasts."""
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
            found = point.load()
        except Exception as error:  # a package of somebody else's: whatever it raises
            raise ContractError(
                f"entry point {point.name} of {self._group} cannot be loaded: {error!r}"
            ) from error
        if not isinstance(found, self._kind):
            raise ContractError(
                f"entry point {point.name} of {self._group}: got a "
                f"{type(found).__name__}, expected a {self._kind.__name__}"
            )
        return cast(T, found)
