"""Places in a single head, by the classes that clients name as they meet them.

The head has all its places from the start. Places without a class are closed: they have
no probability and no gradient. A class keeps its place. New classes get the next
places, by ascending client and in the order of its files. The server decides that
before the first round of a task, and tells all clients with the run.
"""

from collections.abc import Callable, Mapping, Sequence
from logging import INFO, WARNING

from fcl_flower.config.run_spec import RunSpec
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.log import log
from fcl_flower.core.types import Assignment, TaskStage
from fcl_flower.data.labels import look_alikes, plain, refusal, spelled_apart
from fcl_flower.results.events import ClassHolders
from fcl_flower.rounds import messages
from fcl_flower.rounds.clients import Asker
from fcl_flower.rounds.transport import QUERY


class ClassPlaces:
    """Asks clients for the classes of their tasks, and gives each a place."""

    def __init__(
        self,
        asker: Asker,
        spec: RunSpec,
        on_names: Callable[[tuple[str, ...], ClassHolders], None],
        holders: ClassHolders,
    ) -> None:
        """Begin with the classes of a run, and the clients that have named them.

        ``on_names`` is called with all names when there are more. With secure
        aggregation no holders are noted.
        """
        self._asker, self._spec, self._on_names = asker, spec, on_names
        self._named: set[tuple[int, int]] = set()
        self._holders = {name: {*clients} for name, clients in holders.items()}

    def agree(self, stages: Mapping[int, TaskStage]) -> dict[int, str]:
        """Ask clients with a new task; return why classes of some have no place.

        A client that has not named its classes is asked again before the next round.
        """
        requests = {
            client: messages.MessageEncoder().encode_request({}, Assignment(stage))
            for client, stage in stages.items()
            if (client, stage.task) not in self._named
        }
        kind = f"{QUERY}.{messages.CLASSES}"
        named, _ = self._asker.ask(
            kind, requests, lambda _, content: messages.class_names(content)
        )
        before = self._spec.config.data.classes
        names, failures, noted = list(before), dict[int, str](), False
        for client, own in named.items():
            try:
                spelled = self._spelled(own, names)
            except ConfigError as error:
                failures[client] = f"classes: {error}"
                continue
            names += [name for name in spelled if name not in names]
            self._named.add((client, stages[client].task))
            noted |= self._note(client, spelled)
        grown = len(names) > len(before)
        if grown or noted:
            self._on_names(tuple(names), self._holders)
        if grown:
            self._tell(names)
        return failures

    def _spelled(self, own: Sequence[str], names: Sequence[str]) -> Sequence[str]:
        """Spell a client's classes as the head does; see ``data.labels``.

        Raises:
            ConfigError: a spelling is refused, or the head has too few places.
        """
        rule, places = self._spec.config.data.labels, self._spec.config.model.places
        alike = {plain(name): name for name in reversed(names)}
        for name in own:
            if rule == "refuse" and name not in names and plain(name) in alike:
                raise ConfigError(f"got {refusal(name, alike[plain(name)])}")
        if rule != "keep":
            own = [alike.get(plain(name), name) for name in own]
        count = len({*names, *own})
        if count > places:
            expected = f"at most the {places} of model.places"
            raise ConfigError(f"{count} of the federation, expected {expected}")
        return own

    def _note(self, client: int, names: Sequence[str]) -> bool:
        """Note the holder of some classes; tell whether any of that is new."""
        if self._spec.config.federation.secure_aggregation:
            return False
        before = look_alikes(self._holders)
        new = [name for name in names if client not in self._holders.get(name, ())]
        for name in new:
            self._holders.setdefault(name, set()).add(client)
        for group in look_alikes(self._holders):
            if group not in before:
                listed = " and ".join(spelled_apart(group))
                log(WARNING, "client %d: classes %s look alike", client, listed)
        return bool(new)

    def _tell(self, names: Sequence[str]) -> None:
        log(INFO, "classes of the head: %s", ", ".join(names))
        named = self._spec.with_settings(**{"data.class_names": ",".join(names)})
        self._spec = named.model_copy(update={"revision": self._spec.revision + 1})
        registry = self._asker.registry
        text = registry.tell(self._spec)
        every = {client: messages.greeting(text) for client in registry.clients}
        self._asker.ask(QUERY, every, lambda _, content: content)
