"""Matched ensembles, server side: networks pass on to clients of the same classes.

One-shot federated learning (Guha et al., 2019, https://arxiv.org/abs/1902.11175), with
the classes of tasks matched as for exact heads (`strategies.analytic.match_classes`).
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from typing_extensions import override

from fcl_flower.aggregation.policy import shares_counted
from fcl_flower.algorithms.base import (
    Metrics,
    Report,
    ServerQueries,
    ServerStrategy,
    Updates,
)
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import (
    AnyArray,
    Array,
    Arrays,
    ClientTask,
    Payload,
    TaskStage,
    Update,
    client_tasks,
    specs,
)
from fcl_flower.core.update_checks import same_tensors
from strategies.analytic import AnalyticParams
from strategies.analytic.match_classes import Same, match_classes
from strategies.analytic.server import check
from strategies.analytic.sums import add_up, samples_in
from strategies.matched_ensemble import HEADS, MatchedEnsembleParams

_EXACT = AnalyticParams()
"""The parameters that fix the form of sums."""
_NETWORK = re.compile(r"networks/\d{1,6}")
_MOST_HELD = 2**16
"""The most networks that a client may report to have."""
_LEAST = 2
"""The fewest classes that two tasks share if one may answer for the other: with fewer
there are no two classes to tell apart."""


class MatchedEnsemble(ServerStrategy[MatchedEnsembleParams], ServerQueries):
    """A strategy that keeps a network for each task, and sends matching ones on.

    It asks for sums as a task begins, and gets the task's network as it ends. A client
    receives ``same/T`` of each of its tasks. It also receives the networks
    that it lacks: matching ones and its own. ``meta`` (``missing``) lists its own tasks
    whose networks have not come. It sends ``networks/T``, and ``meta`` (``held``). The
    diagnostics are the numbers of ``networks`` on the server, and of pairs of classes
    of two tasks that are the same, ``same_classes``.

    State, with T the number of a task of client C:

    - ``base``: the body of the run's first network, which never changes.
    - ``sums/C/T``: see `strategies.analytic.sums`.
    - ``same/C/T``: by ``c/t`` of another task, pairs of a class of this task and the
      same class of the other, shape (pairs, 2). With a single head, class numbers
      decide it.
    - ``networks/C/T``: its network, with the head as ``head.weight`` and ``head.bias``.
    - ``held/C``: the networks that the client has (``tasks``, rows of C and T).
    """

    groups = {"networks": "private"}

    @property
    @override
    def asks(self) -> bool:
        return self.params.matching == "tested"

    @override
    def init(self, model: Arrays) -> Payload:
        return {"base": model}

    @override
    def configure_query(
        self, state: Payload, stage: TaskStage, client: int
    ) -> Payload | None:
        is_known = ClientTask(client, stage.task).group("sums") in state
        return {} if self.asks and not is_known else None

    @override
    def check_query_reply(self, state: Payload, answer: Payload) -> None:
        if not answer:
            return  # the client has too few samples
        if answer.keys() != {"sums"}:
            raise WireError(f"groups {sorted(answer)}: expected sums alone")
        model = self.context.model
        check("sums", answer["sums"], _EXACT, model.classes, model.features)

    @override
    def aggregate_query(
        self, state: Payload, stage: TaskStage, answers: Mapping[int, Payload]
    ) -> Payload:
        new = {
            ClientTask(client, stage.task).group("sums"): answer["sums"]
            for client, answer in answers.items()
            if answer
        }
        return self._matched({**state, **new}) if new else state

    @override
    def send(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        sent: dict[str, Arrays] = {}
        wanted: set[ClientTask] = set()
        missing = []
        for own in client_tasks(state, "same"):
            if own.client != client:
                continue
            matches = state[own.group("same")]
            sent[f"same/{own.task}"] = matches
            wanted |= {own, *map(ClientTask.of, matches)}
            if own.task != stage.task and own.group("networks") not in state:
                missing.append(own.task)
        if f"held/{client}" in state:
            wanted -= _rows(state[f"held/{client}"]["tasks"])
        for task in sorted(wanted):
            if (group := task.group("networks")) in state:
                sent[group] = state[group]
        if missing:  # the client was away at its task's end, or its reply was lost
            sent["meta"] = {"missing": np.asarray(missing, np.int64)}
        return sent

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        payload = update.payload
        networks = [group for group in payload if _NETWORK.fullmatch(group)]
        if {"meta", *networks} != payload.keys():
            raise WireError(f"groups {sorted(payload)}: expected meta and networks/T")
        held = specs(payload["meta"])
        if held.keys() != {"held"} or held["held"].sparse:
            raise WireError(f"meta: got {sorted(held)}, expected held alone, dense")
        shape, dtype = held["held"].shape, held["held"].dtype
        if dtype != np.int64 or shape[1:] != (2,) or shape[0] > _MOST_HELD:
            raise WireError(
                f"meta/held: got {dtype} of shape {shape}, expected int64 of at most "
                f"{_MOST_HELD} rows of client and task"
            )
        for group in networks:
            self._check_network(state, group, payload[group])

    @override
    def combine(self, state: Payload, stage: TaskStage, updates: Updates) -> Payload:
        new = dict(state)
        for client, update in updates.items():
            now = (update.stage or stage).task
            for group in sorted(update.payload.keys() - {"meta"}):
                own = ClientTask(client, int(group.rpartition("/")[2]))
                kept = own.group("networks")
                # A task without sums cannot be matched, so its network is of no use.
                is_known = own.group("sums") in state
                if is_known and (own.task == now or kept not in state):
                    new[kept] = update.payload[group]
        kept_now = set(client_tasks(new, "networks"))
        for client, update in updates.items():
            # Networks that the server lacks need no record.
            held = sorted(kept_now & _rows(update.payload["meta"]["held"]))
            tasks = np.asarray(held, np.int64).reshape(-1, 2)
            new[f"held/{client}"] = {"tasks": tasks}
        return new

    @override
    def on_state_lost(self, state: Payload, client: int) -> Payload:
        return {g: arrays for g, arrays in state.items() if g != f"held/{client}"}

    @override
    def report(self, state: Payload, stage: TaskStage, metrics: Metrics) -> Report:
        pairs = sum(
            len(np.asarray(pairs))
            for group, matches in state.items()
            if group.startswith("same/")
            for pairs in matches.values()
        )
        networks = len(client_tasks(state, "networks"))
        return {"networks": float(networks), "same_classes": pairs / 2}

    def _check_network(self, state: Payload, group: str, arrays: Arrays) -> None:
        classes, features = self.context.model.classes, self.context.model.features
        body = {n: a for n, a in state["base"].items() if not n.startswith(HEADS)}
        expected = {
            **body,
            "head.weight": np.broadcast_to(np.float32(0), (classes, features)),
            "head.bias": np.broadcast_to(np.float32(0), classes),
        }
        same_tensors({group: arrays}, {group: expected})

    def _matched(self, state: Payload) -> Payload:
        tasks = client_tasks(state, "sums")
        received = [state[task.group("sums")] for task in tasks]
        model = self.context.model
        if model.single_head:
            matches_by_task = known_classes(
                [np.asarray(sums["cross"]) for sums in received]
            )
        else:
            shares = shares_counted(
                [samples_in(sums) for sums in received], self.aggregation.examples_limit
            )
            matches_by_task = match_classes(
                [
                    add_up([sums], model.classes, model.features, [share])
                    for sums, share in zip(received, shares, strict=True)
                ]
            )
        same = {
            task.group("same"): {
                tasks[other].name: np.asarray(sorted(pairs), np.int64)
                for other, pairs in sorted(matches.items())
                if len(pairs) >= _LEAST
            }
            for task, matches in zip(tasks, matches_by_task, strict=True)
        }
        return {**state, **same}


def known_classes(cross: Sequence[Array]) -> Same:
    """Match the classes that tasks have in common where one head serves all."""
    present = [set(np.flatnonzero(sums[:, -1]).tolist()) for sums in cross]
    return [
        {
            other: [(label, label) for label in sorted(mine & its)]
            for other, its in enumerate(present)
            if other != number
        }
        for number, mine in enumerate(present)
    ]


def _rows(tasks: AnyArray) -> set[ClientTask]:
    return {ClientTask(int(client), int(task)) for client, task in np.asarray(tasks)}
