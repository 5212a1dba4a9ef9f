"""The place of a client: its number, run and state, from one message to the next."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fcl_flower.config.run_spec import NodeConfig, RunSpec
from fcl_flower.core.errors import ConfigError, RunUnknownError
from fcl_flower.core.files import make_private_folder, replace_file
from fcl_flower.core.formats import KEY, check_format
from fcl_flower.rounds import messages
from fcl_flower.rounds.transport import Content

SPEC_FILE: Final = "run.json"
"""The file beside a client's state with the run that the server has sent."""
SPEC_FORMAT: Final = 2
NUMBER_FILE: Final = "number.json"
"""The file beside the states of a run with the number of the client."""
NUMBER_FORMAT: Final = 1


@dataclass(slots=True)
class Place:
    """The place of one client in one run.

    Attributes:
        run: the name of the run, and of its folder.
        node: the node's own settings.
        state: what the client keeps if its node has no folder for states.
    """

    run: str
    node: NodeConfig
    state: Content = field(default_factory=Content)

    @property
    def folder(self) -> Path:
        """The folder of the client's state, where its node has one for states."""
        return self._states / f"client-{self.number}"

    @property
    def _states(self) -> Path:
        return Path(self.node.state_path) / self.run

    # ---- the client's number

    @property
    def number(self) -> int:
        """The client's number, by the node's settings or by the server.

        Raises:
            ConfigError: there is none yet.
        """
        number = self.known_number
        if number is None:
            raise ConfigError(
                "node-config partition-id: missing, and no server has given this "
                "client a number in this run"
            )
        return number

    @property
    def known_number(self) -> int | None:
        """The client's number; None where there is none yet."""
        if self.node.partition_id is not None:
            return self.node.partition_id
        if not self.node.state_path:
            return messages.told_number(self.state)
        file = self._states / NUMBER_FILE
        if not file.is_file():
            return None
        kept = json.loads(file.read_text())
        check_format(file, kept.get(KEY), NUMBER_FORMAT)
        return int(kept["client"])

    def keep_number(self, number: int) -> None:
        """Keep the number that the server gives, unless the node has its own."""
        if self.node.partition_id is not None:
            return
        if not self.node.state_path:
            self.state.scalars |= messages.greeting("", number).scalars
            return
        make_private_folder(self._states)
        text = json.dumps({KEY: NUMBER_FORMAT, "client": number})
        replace_file(self._states / NUMBER_FILE, text, private=True)

    # ---- the run

    def keep_spec(self, spec: RunSpec) -> None:
        """Keep the specification of a run beside the client's state."""
        if not self.node.state_path:
            self.state.scalars |= messages.greeting(spec.to_json()).scalars
            return
        make_private_folder(self.folder)
        text = json.dumps({KEY: SPEC_FORMAT, **json.loads(spec.to_json())})
        replace_file(self.folder / SPEC_FILE, text, private=True)

    def spec(self) -> RunSpec:
        """Find the specification of the run.

        Raises:
            RunUnknownError: the server has sent none, or it is lost.
        """
        text, number = messages.told_run(self.state), self.known_number
        if self.node.state_path and number is not None:
            text = _without_format(self.folder / SPEC_FILE)
        if not text or number is None:
            why = "the run is not known here, as after a loss of the state"
            raise RunUnknownError(why)
        return RunSpec.from_json(text)


def place_of(client: int) -> Place:
    """Make the place of a client of a simulation."""
    return Place("", NodeConfig(partition_id=client))


def _without_format(file: Path) -> str:
    if not file.is_file():
        return ""
    content = json.loads(file.read_text())
    check_format(file, content.pop(KEY, None), SPEC_FORMAT)
    return json.dumps(content)
