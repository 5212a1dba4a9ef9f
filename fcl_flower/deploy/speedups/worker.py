"""The process that answers the messages of one run, one after another.

What `flwr-clientapp` does for one message is done for many: the app and all that it has
imported, built and read stay. It is started by its path, and imports nothing of this
package: where a run brings its own code (``flwr run .``), that is the code to load.

An app other than this project's may count on a new process for each message: its worker
leaves when it has answered one. So does one whose app failed, or cannot be loaded.
"""

import runpy
import shutil
import sys
import time
from contextlib import closing
from logging import ERROR, INFO, getLogger
from multiprocessing.connection import Connection
from pathlib import Path

from flwr.app import Context, Error, Message, RecordDict
from flwr.cli.install import install_from_fab
from flwr.clientapp.client_app import ClientApp, LoadClientAppError
from flwr.clientapp.utils import get_load_client_app_fn
from flwr.common.config import get_project_config, get_project_dir
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import context_from_proto, fab_from_proto, run_from_proto
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PullTaskInputRequest,
    PullTaskInputResponse,
)
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
)
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.runtime.run_clientapp import push_message, push_task_output

log = getLogger("flwr").log

STREAMING = runpy.run_path(str(Path(__file__).with_name("streaming.py")))
STREAMING["take_over_pushes"]()
OURS = "fcl_flower.flower_app.client_app:app"
STORED_SECONDS = 30.0
"""A SuperNode offers a task just before it has stored the message."""


class Worker:
    """Answers messages by the app of one run."""

    def __init__(self, channel: Connection, address: str) -> None:
        """Load nothing yet; tokens come through the channel from the executor."""
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
            with closing(supernode):
                heart = HeartbeatSender(make_task_heartbeat_fn_http(supernode))
                heart.start()
                try:
                    output = self._answer(supernode)
                finally:
                    heart.stop()
                # Nothing may come after it: Flower would end this process.
                push_task_output(supernode, *output)
            self._channel.send_bytes(b"stays" if self._stays else b"")

    def _answer(self, supernode: RuntimeHttpClient) -> tuple[Context, str, str]:
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
            message.content = RecordDict()  # two models are enough from here on
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
        return context, status, details

    def _load(self, given: PullTaskInputResponse) -> ClientApp:
        run, fab = run_from_proto(given.run), fab_from_proto(given.fab)
        place = run.fab_id, run.fab_version, fab.hash_str
        load = get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
        try:
            install_from_fab(fab.content, skip_prompt=True)
            self._app = load(*place)
        except Exception:
            # A full disk may have left a part of it, which Flower takes for the whole.
            shutil.rmtree(get_project_dir(*place), ignore_errors=True)
            raise
        config = get_project_config(get_project_dir(*place))
        components = config["tool"]["flwr"]["app"]["components"]
        self._stays = components["clientapp"] == OURS
        return self._app


def _pull_message(supernode: RuntimeHttpClient) -> PullAppMessagesResponse:
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
    (tree,) = pulled.message_object_trees
    node = Node(node_id=context.node_id)
    contents = STREAMING["pulled"](
        [one.object_id for one in iterate_object_tree(tree)],
        make_pull_object_fn_protobuf(supernode.PullObject, node, context.run_id),
    )
    make_confirm_message_received_fn_protobuf(
        supernode.ConfirmMessageReceived, node, context.run_id
    )(tree.object_id)
    message: Message = STREAMING["inflated"](tree.object_id, contents)
    STREAMING["join"](message.content)
    # Its own object id is no part of what it is made of.
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message


if __name__ == "__main__":
    try:
        Worker(Connection(int(sys.argv[1])), sys.argv[2]).run()
    except KeyboardInterrupt:  # so Flower says that the token of a task has expired
        sys.exit("the SuperNode waits for the answer to this message no longer")
