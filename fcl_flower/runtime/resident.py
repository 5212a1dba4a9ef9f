"""Takes up the messages of a SuperNode, and sees that each of them is answered.

It stands where Flower's SuperExec does, which starts a process for each message. Here a
worker answers all messages of a run, one after another, as a SuperNode asks for them;
another run gets another worker, so that nothing of a run is there in the next. If a
worker ends or hangs, its message is answered by an error, and the next gets another.
"""

import os
import runpy
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from logging import ERROR, INFO
from multiprocessing.connection import Connection
from typing import TypeAlias

import httpx
from flwr.app import Context, Error, Message, RecordDict
from flwr.cli.install import install_from_fab
from flwr.clientapp.client_app import ClientApp, LoadClientAppError
from flwr.clientapp.utils import get_load_client_app_fn
from flwr.common.config import get_project_config, get_project_dir
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import (
    context_from_proto,
    fab_from_proto,
    message_from_proto,
    run_from_proto,
)
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    AcquireTaskResponse,
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PullTaskInputRequest,
    PullTaskInputResponse,
)
from flwr.supercore import log
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPushError,
    pull_and_inflate_object_from_tree,
)
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.object_store import ObjectStore
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal
from flwr.supernode.nodestate import NodeState
from flwr.supernode.runtime.run_clientapp import push_message, push_task_output

from fcl_flower.core.errors import RoundError
from fcl_flower.runtime.client import WorkerProcess

QUICK, SLOW = 0.1, 1.0
"""Seconds between two looks: in the midst of a run, and when nothing has come for
`BUSY_SECONDS`. A look costs some milliseconds of a processor."""
BUSY_SECONDS = 30.0
IDLE_SECONDS = 600.0
"""After which a worker is ended, so that a client without a run has its memory back."""
START_SECONDS = 120.0
"""What a worker may take until it has a message."""
PUSH_SECONDS = 120.0
"""What a worker may take to hand an answer over to the SuperNode beside it."""
SEEN_SECONDS = 2.0
"""After which a SuperNode has seen that there is an answer: it looks twice a second."""
NO_AGENTS = (
    "this client runs client apps alone, expected fcl client --no-resident for an agent"
)
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


class Executor:
    """Answers the messages of one SuperNode."""

    def __init__(self, address: str, secret: bytes) -> None:
        """Start nothing yet.

        Args:
            address: HOST:PORT of this machine, where the SuperNode hands out messages.
            secret: which it shares with this process alone.
        """
        self._address = address
        self._supernode = self._client(
            SuperExecAuthHttpInterceptor(
                master_secret=secret, protected_methods=[_ACQUIRE]
            )
        )
        self._worker: WorkerProcess | None = None
        self._run = 0
        self._last = time.monotonic()

    def run(self) -> None:
        """Answer messages for as long as this process lasts."""
        while True:
            if not self.look():
                time.sleep(self.rest())

    def look(self) -> bool:
        """Answer one message if there is one; return whether there was."""
        kinds = [TaskType.CLIENT_APP, TaskType.AGENT_APP]  # all that a message is for
        request = AcquireTaskRequest(supported_task_types=kinds)
        try:
            found: AcquireTaskResponse = self._supernode.AcquireTask(request)
        except httpx.TransportError:  # it has not started yet, or ends
            return False
        if not found.token:
            return False
        if found.task.type == TaskType.CLIENT_APP:
            self._answer(found.token, found.task.run_id)
        else:
            self._fail(found.token, None, NO_AGENTS)
        self._last = time.monotonic()
        return True

    def rest(self) -> float:
        """Return the seconds until the next look; end a worker that has no work."""
        quiet = time.monotonic() - self._last
        if quiet > IDLE_SECONDS:
            self._end_worker()
        return QUICK if quiet < BUSY_SECONDS else SLOW

    def close(self) -> None:
        """End what there is of it."""
        self._end_worker()
        self._supernode.close()

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _answer(self, token: str, run: int) -> None:
        """See that the message of a task is answered, by the worker of its run."""
        if self._worker is None or self._run != run:
            self._end_worker()
            self._worker, self._run = WorkerProcess(self._address), run
        worker, message, answer = self._worker, None, ""
        try:
            worker.send(token)
            message = ProtoMessage.FromString(worker.receive(START_SECONDS))
            # A server waits no longer, so that nothing is lost with the worker.
            answer = worker.receive(message.metadata.ttl).decode()
            stays = worker.receive(PUSH_SECONDS)
        except RoundError as error:
            log(ERROR, "%s", error)
            self._end_worker()
            if answer:
                self._withdraw(token, answer)
            else:
                self._fail(token, message, str(error))
        else:
            if not stays:
                self._end_worker()

    def _fail(self, token: str, message: ProtoMessage | None, reason: str) -> None:
        """Answer a message by an error in the place of a worker that is gone.

        Where that fails, too, the SuperNode does so, when it has heard nothing for a
        minute.
        """
        supernode = self._client(RuntimeTokenHttpInterceptor(token))
        try:
            if message is None:
                pulled = supernode.PullMessages(PullAppMessagesRequest())
                (message,) = pulled.messages_list
            question = message_from_proto(message)
            about = question.metadata
            context = Context(about.run_id, about.dst_node_id, {}, RecordDict(), {})
            reply = Message(Error(code=0, reason=reason), reply_to=question)
            push_message(supernode, reply, context)
            push_task_output(supernode, None, SubStatus.FAILED, reason)
        except (httpx.HTTPError, ValueError) as error:
            said = str(error).partition("\n")[0]
            log(ERROR, "this could not be told to the server: %s", said)
        finally:
            supernode.close()

    def _withdraw(self, token: str, answer: str) -> None:
        """Take back an answer of which a worker has handed over a part at most.

        A SuperNode waits without end for the rest of an answer. An error in its place
        would be a second one, which stands for the answer to the next message and puts
        all later ones off by one. So the server misses this one; and if nothing of it
        has come, the SuperNode answers when it has heard nothing for a minute.
        """
        time.sleep(SEEN_SECONDS)
        supernode = self._client(RuntimeTokenHttpInterceptor(token))
        try:
            found = ConfirmMessageReceivedRequest(message_object_id=answer)
            supernode.ConfirmMessageReceived(found)  # forgets what any message holds
        except httpx.HTTPError as error:
            log(ERROR, "the SuperNode may wait for an answer in vain: %s", error)
        finally:
            supernode.close()

    def _client(self, identity: ProtobufClientInterceptor) -> RuntimeHttpClient:
        return RuntimeHttpClient.from_server_address(
            server_address=self._address,
            insecure=True,
            root_certificates=None,
            interceptors=[RuntimeVersionHttpInterceptor("SuperExec"), identity],
        )


def run_node(address: str, command: Sequence[str]) -> None:
    """Run a SuperNode to its end, which is that of this process.

    Args:
        address: HOST:PORT at which it hands out its messages.
        command: of flower-supernode, in isolation mode ``process``.
    """
    # Nobody else on this machine may take the client's messages up. A pipe, as the
    # secret need not lie in any file.
    secret = secrets.token_bytes(32)
    reader, writer = os.pipe()
    os.write(writer, secret)
    os.close(writer)
    supernode = subprocess.Popen(
        [*command, "--superexec-auth-secret-file", f"/dev/fd/{reader}"],
        pass_fds=[reader],
    )
    os.close(reader)
    threading.Thread(target=_end_with, args=[supernode], daemon=True).start()
    with closing(Executor(address, secret)) as executor:
        executor.run()


def _end_with(supernode: "subprocess.Popen[bytes]") -> None:
    code = supernode.wait()
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    run_node(sys.argv[1], sys.argv[2:])


STOPPED = "its run was stopped before its message was there"

Received: TypeAlias = tuple[Message, ObjectTree] | None
Step: TypeAlias = Callable[..., int | None]
"""Flower's step from "is there a message?" to its being stored."""


def leaving_nothing(step: Step) -> Step:
    """Return Flower's step, which tidies up where it ends without a message.

    A SuperNode has one message at a time, and the one before has been answered: what is
    there of its run, and was not before, is what the step has left.
    """

    def tidy(
        *,
        state: NodeState,
        object_store: ObjectStore,
        receive: Callable[[], Received],
        **more: object,
    ) -> int | None:
        found: Received = None
        before = set[int]()

        def noted() -> Received:
            nonlocal found
            found = receive()
            if found is not None:
                before.update(_tasks(state, found[0]))
            return found

        run = step(state=state, object_store=object_store, receive=noted, **more)
        if run is None and found is not None:
            message = found[0]
            for task in (
                _tasks(state, message) - before
            ):  # their tokens open nothing now
                state.finish_task(task, SubStatus.FAILED, STOPPED)
            answers = state.get_messages_legacy(is_reply=True)
            left = [one.metadata.message_id for one in (message, *answers)]
            state.delete_messages(message_ids=left)
            for name in left:
                object_store.delete(name)
        return run

    return tidy


def _tasks(state: NodeState, message: Message) -> set[int]:
    found = state.get_tasks(run_ids=[message.metadata.run_id])
    return {task.task_id for task in found}


if __name__ == "__main__":
    start_client_internal._pull_and_store_message = leaving_nothing(
        start_client_internal._pull_and_store_message
    )
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")


OURS = "fcl_flower.federation.client_app:app"
STORED_SECONDS = 30.0
"""A SuperNode offers a task just before it has stored the message."""


class Worker:
    """Answers messages by the app of one run."""

    def __init__(self, channel: Connection, address: str) -> None:
        """Load nothing yet.

        Args:
            channel: to the executor, which sends tokens.
            address: HOST:PORT of the SuperNode.
        """
        self._channel = channel
        self._address = address
        self._app: ClientApp | None = None
        self._stays = False

    def run(self) -> None:
        """Answer a message for each token, until the executor has no more."""
        while True:
            try:
                token = self._channel.recv_bytes().decode()
            except EOFError:
                return
            supernode = RuntimeHttpClient.from_server_address(
                server_address=self._address,
                insecure=True,
                root_certificates=None,
                interceptors=[
                    RuntimeVersionHttpInterceptor("flwr-clientapp"),
                    RuntimeTokenHttpInterceptor(token),
                ],
                retry_invoker=make_simple_http_retry_invoker(),
            )
            heart = HeartbeatSender(make_task_heartbeat_fn_http(supernode))
            heart.start()
            try:
                self._answer(supernode)
            finally:
                heart.stop()
                supernode.close()
            self._channel.send_bytes(b"stays" if self._stays else b"")

    def _answer(self, supernode: RuntimeHttpClient) -> None:
        given = supernode.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id = given.task_id
        TaskIdentity.run_id = given.run.run_id
        TaskIdentity.node_id = given.context.node_id
        context = context_from_proto(given.context)
        pulled = _pull_message(supernode)
        self._channel.send_bytes(pulled.messages_list[0].SerializeToString())
        message = _inflated(supernode, pulled, context)
        status, details = SubStatus.COMPLETED, ""
        try:
            app = self._app or self._load(given)
            reply = app(message=message, context=context)
        except Exception as error:  # answered for as Flower's own process does
            log(ERROR, "ClientApp raised an exception", exc_info=error)
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            details = f"{type(error)}:<'{error}'>"
            if isinstance(error, LoadClientAppError):
                code = ErrorCode.LOAD_CLIENT_APP_EXCEPTION
                details = "An exception was raised when attempting to load `ClientApp`"
            reply = Message(Error(code=code, reason=details), reply_to=message)
            status, self._stays = SubStatus.FAILED, False
        self._channel.send_bytes(reply.object_id.encode())
        try:
            push_message(supernode, reply, context)
        except ObjectPushError as error:  # its run was stopped: nobody waits for it
            log(INFO, "the SuperNode has let an answer go: %s", error)
            status, details = SubStatus.FAILED, str(error)
        push_task_output(supernode, context, status, details)

    def _load(self, given: PullTaskInputResponse) -> ClientApp:
        run, fab = run_from_proto(given.run), fab_from_proto(given.fab)
        install_from_fab(fab.content, skip_prompt=True)
        place = run.fab_id, run.fab_version, fab.hash_str
        load = get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
        self._app = load(*place)
        config = get_project_config(get_project_dir(*place))
        components = config["tool"]["flwr"]["app"]["components"]
        self._stays = components["clientapp"] == OURS
        return self._app


def _pull_message(supernode: RuntimeHttpClient) -> PullAppMessagesResponse:
    """Return the message of a task, without its content.

    Raises:
        RuntimeError: there is none.
    """
    deadline = time.monotonic() + STORED_SECONDS
    while time.monotonic() < deadline:
        pulled = supernode.PullMessages(PullAppMessagesRequest())
        if pulled.messages_list:
            return pulled
        time.sleep(0.05)
    raise RuntimeError("the SuperNode has no message for its task")


def _inflated(
    supernode: RuntimeHttpClient, pulled: PullAppMessagesResponse, context: Context
) -> Message:
    """Return a message with its content, which the SuperNode then forgets."""
    (tree,) = pulled.message_object_trees
    node = Node(node_id=context.node_id)
    message = pull_and_inflate_object_from_tree(
        tree,
        make_pull_object_fn_protobuf(supernode.PullObject, node, context.run_id),
        make_confirm_message_received_fn_protobuf(
            supernode.ConfirmMessageReceived, node, context.run_id
        ),
        return_type=Message,
    )
    # Its own object id is no part of what it is made of.
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message


if __name__ == "__main__":
    try:
        Worker(Connection(int(sys.argv[1])), sys.argv[2]).run()
    except KeyboardInterrupt:  # so Flower says that the token of a task has expired
        sys.exit("the SuperNode waits for the answer to this message no longer")
