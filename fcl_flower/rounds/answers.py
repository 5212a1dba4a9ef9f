"""The client's side of every message: it wraps any `ClientLearner` of ours."""

import errno
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Final, TypeAlias

from fcl_flower.algorithms.base import ClientQueries, Turn
from fcl_flower.config.run_config import refuse_attack
from fcl_flower.config.run_spec import RunSpec
from fcl_flower.core.errors import (
    MESSAGE_FAILED,
    ContractError,
    FclError,
    RoundError,
    RunUnknownError,
    WireError,
    unforeseen,
    without_paths,
)
from fcl_flower.core.log import log
from fcl_flower.core.types import Evaluation, Payload, TaskStage, Update
from fcl_flower.data.examples import TaskData
from fcl_flower.data.local.client import finished_tasks
from fcl_flower.results.events import MULTIPLY_ADDS
from fcl_flower.rounds import clients, messages, pixel_sums
from fcl_flower.rounds.client import Client, client_data, local_data, run_parts
from fcl_flower.rounds.copies import CopyError
from fcl_flower.rounds.messages import encode_evaluation
from fcl_flower.rounds.place import Place
from fcl_flower.rounds.replies import SURVEY
from fcl_flower.rounds.secure import client as exchange
from fcl_flower.rounds.secure.client import ClientSide
from fcl_flower.rounds.transport import EVALUATE, QUERY, TRAIN, Content, Problem, Value
from fcl_flower.rounds.versions import remove_old_runs

# The server is trusted with more than a peer: it sends the adapters of all clients.
MAX_RECEIVED = 2**36

Train: TypeAlias = Callable[
    [Payload, Payload, TaskStage, TaskData], tuple[Payload, Update]
]
"""`ClientLearner.train`."""
FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""The errors of a disk, or a share of it, without room."""
Handler: TypeAlias = Callable[[Content, Place], Content]
"""Answers the messages of one kind, in a client's place."""


def answer(kind: str, content: Content, place: Place) -> Content | Problem:
    """Answer a message of any kind; the answer to an error is its sentence.

    The sentence leaves out what tells of local data. This machine's log has it, and the
    traceback of an unforeseen error.
    """

    def reply() -> Content:
        try:
            return _handler(kind)(content, place)
        except OSError as error:
            if error.errno in FULL and place.node.state_path:
                raise _no_room(place) from error
            raise

    return answered(reply)


def _no_room(place: Place) -> RoundError:
    """Say what the disk of a client's states lacks; only the log names the folder."""
    states = Path(place.node.state_path)
    needed = sum(f.stat().st_size for f in place.folder.rglob("*") if f.is_file())
    free = shutil.disk_usage(states).free
    log(
        ERROR, "no room for the states in %s: make some, and the client goes on", states
    )
    return RoundError(
        f"no room on the disk of its states (fcl client --state): they take "
        f"{needed / 1e6:.1f} MB and need as much again for a moment, where "
        f"{free / 1e6:.1f} MB are free; it goes on when there is room"
    )


def answered(call: Callable[[], Content | Problem]) -> Content | Problem:
    """Answer with the result of a call; see `answer`."""
    try:
        return call()
    except RunUnknownError as error:
        log(WARNING, "%s", error)
        lost = messages.state_lost(0)
        lost.scalars[messages.RUN_UNKNOWN] = {}
        return lost
    except FclError as error:
        reason, cause = without_paths(str(error)), error.__cause__
        local = f"{error}: {cause}" if isinstance(cause, FclError) else str(error)
        log(ERROR, f"{MESSAGE_FAILED} %s", local)
    except Exception as error:
        reason = unforeseen(error)
        log(ERROR, "an unforeseen error: please report it", exc_info=error)
        log(ERROR, f"{MESSAGE_FAILED} %s", f"{type(error).__name__}: {error}")
    return Problem(reason)


def _handler(kind: str) -> Handler:
    if kind not in HANDLERS:
        raise WireError(
            f"message: got the kind {kind[:40]!r}, expected one of "
            f"{', '.join(HANDLERS)}: install the same version of fcl-flower everywhere"
        )
    return HANDLERS[kind]


def who(content: Content, place: Place) -> Content:
    """Reply with the client's number, if it has one, and its version.

    The client keeps the server's run, unless that asks for an attack, and the number
    that the server gives.
    """
    number = messages.told_number(content)
    if number is not None:
        place.keep_number(number)
    if place.known_number is None:
        return Content(scalars={"who": {**clients.own()}})
    if text := messages.told_run(content):
        spec = RunSpec.from_json(text)
        refuse_attack(spec.config)
        node = place.node
        begins = bool(node.keep_runs) and not place.folder.exists()
        place.keep_spec(spec)
        if begins:
            run = place.folder.parent
            for name in remove_old_runs(run.parent, node.keep_runs, run.name):
                log(INFO, "removed the state of an old run, %s", name)
    about: dict[str, Value] = {"partition": place.number, **clients.own()}
    if place.node.data_path:
        about["tasks"] = len(_finished(place))
    return Content(scalars={"who": about})


def finished(content: Content, place: Place) -> Content:
    """Reply with the samples of each finished task; the run may be unknown."""
    return Content(scalars={messages.TASKS: {"samples": _finished(place)}})


def _finished(place: Place) -> list[int]:
    node = place.node
    if not node.data_path:
        return []
    report = partial(log, WARNING, "a task does not count yet: %s")
    folder, marked = Path(node.data_path).expanduser(), bool(node.marked_tasks)
    return finished_tasks(folder, marked=marked, report=report)


def classes(content: Content, place: Place) -> Content:
    """Name the classes of the client's task, for a head that grows with them."""
    stage = messages.decode_request(content).stage
    run = run_parts(place.run, place.spec(), place.node).run
    names = local_data(run, place.node, stage.task + 1).class_names(stage.task)
    return Content(scalars={messages.CLASSES: {"names": list(names)}})


def pixels(content: Content, place: Place) -> Content:
    """Add up the pixels of the client's first task, before the run is settled."""
    stage = messages.decode_request(content).stage
    run = run_parts(place.run, place.spec(), place.node).run
    data = client_data(run, place, stage.task + 1).training(stage)
    return pixel_sums.pixel_sums(data.train.x)


def survey(content: Content, place: Place) -> Content:
    """Answer the strategy's query before a task."""
    stage = messages.decode_request(content).stage
    client = Client(place, stage)
    question = messages.decode_payload(content, MAX_RECEIVED)
    saved = client.load(before=stage.round)
    data = client.data(stage)
    learner = client.learner
    if not isinstance(learner, ClientQueries):
        raise ContractError(
            f"{type(learner).__name__}: got a query, expected none, as it is no "
            "ClientQueries"
        )
    reply = learner.answer_query(Turn(client.state(saved), question, stage, data))
    return messages.MessageEncoder(client.wire).payload(reply)


def _in_sum(step: Callable[[ClientSide, Content], Content]) -> Handler:
    """Make the handler of one step of a sum under masks."""

    def reply(content: Content, place: Place) -> Content:
        return step(ClientSide(place, place.spec().config.federation), content)

    return reply


def train(content: Content, place: Place) -> Content:
    """Train one round on the client's current task, and test it where requested."""
    client = Client(place, messages.decode_request(content).stage)
    return trained(content, client, client.train)


def trained(content: Content, client: Client, train: Train) -> Content:
    """Answer a request to train; a hostile client has a ``train`` of its own."""
    assignment = messages.decode_request(content)
    stage = assignment.stage
    saved = client.load(before=stage.round)
    if assignment.since > (0 if saved is None else saved.round):
        return messages.state_lost(assignment.since)
    copy = client.model_copy(saved)
    try:
        received = copy.receive(content, MAX_RECEIVED)
    except CopyError as error:
        log(WARNING, "asking for the whole model: %s", error)
        return messages.state_lost(assignment.since)
    state = client.state(saved)
    data = client.data(stage)
    spent = client.charge_privacy(state, len(data.train.y))
    sum_of = received.pop(exchange.SUM_OF, {})
    client.keep_received(saved, received, stage)
    if client.config.training.count_multiply_adds:
        train = _counted(train)
    state, learned = train(state, received, stage, data)
    update = client.add_noise(learned, received, stage)
    payload = copy.send(update.payload, stage.round)
    client.save(state, stage, spent, copy)
    # The received models are old by now. The client has its state and its update.
    own: Payload = {}
    if client.learner.update_is_model:
        own = client.run.algorithm.load_server().to_predict(learned.payload)
    tested = None
    if assignment.evaluate:
        early = not client.predicts_locally
        tested = client.evaluation(state, own, stage, before_aggregation=early)
    if client.predicts_locally:
        whole = client.validated(state, {}, stage) if assignment.evaluate else None
        client.keep_version(state, {}, stage, whole)
    if client.masks is not None:
        update = client.masks.masked(update, sum_of)
        payload = update.payload
    encoder = messages.MessageEncoder(client.wire)
    return encoder.encode_update(update, stage, tested, payload)


def _counted(train: Train) -> Train:
    from fcl_flower.training.loop import multiply_adds

    def counted(
        state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        (state, update), count = multiply_adds(
            lambda: train(state, received, stage, data)
        )
        metrics = {**update.metrics, MULTIPLY_ADDS: float(count)}
        return state, replace(update, metrics=metrics)

    return counted


def evaluate(content: Content, place: Place) -> Content:
    """Score every task so far, or every concept, on its whole test set."""
    assignment = messages.decode_request(content)
    stage = assignment.stage
    client = Client(place, stage)
    saved = client.load(before=stage.round + 1)
    if assignment.since > (0 if saved is None else saved.round):
        return messages.state_lost(assignment.since)
    received = client.model_copy(saved).receive(content, MAX_RECEIVED)
    state = client.state(saved)
    scores = Evaluation((), 0)  # the client gets models even if no score may leave it
    if client.config.privacy.scores:
        scores = client.evaluation(state, received, stage)
    accuracy = client.validated(state, received, stage)
    client.keep_version(state, received, stage, accuracy)
    return Content(scalars={messages.SCORES: encode_evaluation(scores)})


HANDLERS: Final[Mapping[str, Handler]] = {
    QUERY: who,
    f"{QUERY}.{messages.TASKS}": finished,
    f"{QUERY}.{messages.CLASSES}": classes,
    pixel_sums.KIND: pixels,
    SURVEY: survey,
    f"{QUERY}.{exchange.KEYS}": _in_sum(lambda side, _: side.advertise_keys()),
    f"{QUERY}.{exchange.SHARES}": _in_sum(ClientSide.share_keys),
    f"{QUERY}.{exchange.UNMASK}": _in_sum(ClientSide.unmask),
    TRAIN: train,
    EVALUATE: evaluate,
}
"""The function that answers a message, by the message's kind."""
