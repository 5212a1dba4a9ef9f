"""What we take from Flower that it does not promise; a release that changes it fails.

Three parts: each private name is there and takes our call, each sentence and path that
we read or send stands in Flower's source, and what counts behaves so in one process.
"""

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest
from flwr.app import Array

from fcl_flower.deploy import commands, node_auth, speedups
from fcl_flower.deploy.speedups import streaming, worker
from fcl_flower.deploy.speedups.resident import ACQUIRE_TASK

TRANSLATED = "flwr.supercore.protobuf.translation"
FOLDER = Path(speedups.__file__).parent

# ---- names


def private_names():
    """List each name that a file of the adapter imports from Flower."""
    found = set()
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("flwr."):
                found |= {(node.module, alias.name) for alias in node.names}
    return sorted(found)


@pytest.mark.parametrize(("module", "name"), private_names(), ids=str)
def test_a_private_name_is_there(module, name):
    if not hasattr(import_module(module), name):
        import_module(f"{module}.{name}")


CALLS = {
    "flwr.supercore.inflatable.inflatable_utils:inflate_object_from_contents": (2, ()),
    "flwr.supercore.inflatable.inflatable_object:get_object_body": (2, ()),
    "flwr.supercore.inflatable.inflatable_object"
    ":get_object_head_values_from_object_content": (1, ()),
    "flwr.supercore.inflatable.inflatable_utils:pull_and_inflate_object_from_tree": (
        3,
        ("return_type",),
    ),
    "flwr.supercore.inflatable.inflatable_protobuf_utils"
    ":make_pull_object_fn_protobuf": (3, ()),
    "flwr.supercore.inflatable.inflatable_protobuf_utils"
    ":make_confirm_message_received_fn_protobuf": (3, ()),
    "flwr.supercore.interceptors:RuntimeTokenHttpInterceptor": (1, ()),
    "flwr.supercore.interceptors:RuntimeVersionHttpInterceptor": (1, ()),
    "flwr.supercore.interceptors:SuperExecAuthHttpInterceptor": (
        0,
        ("master_secret", "protected_methods"),
    ),
    "flwr.supercore.runtime:RuntimeHttpClient.from_server_address": (
        0,
        (
            *("server_address", "insecure", "root_certificates"),
            *("interceptors", "retry_invoker"),
        ),
    ),
    "flwr.supercore.heartbeat:HeartbeatSender": (1, ()),
    "flwr.supercore.heartbeat:make_task_heartbeat_fn_http": (1, ()),
    "flwr.supercore.retry:make_simple_http_retry_invoker": (0, ()),
    "flwr.supernode.runtime.run_clientapp:push_message": (3, ()),
    "flwr.supernode.runtime.run_clientapp:push_task_output": (4, ()),
    "flwr.cli.install:install_from_fab": (1, ("skip_prompt",)),
    "flwr.common.config:get_project_dir": (3, ()),
    "flwr.common.config:get_project_config": (1, ()),
    "flwr.clientapp.utils:get_load_client_app_fn": (
        0,
        ("default_app_ref", "app_path", "multi_app"),
    ),
    "flwr.supernode.start_client_internal:_pull_and_store_message": (
        0,
        (
            *("state", "object_store", "node_config", "receive", "get_run", "get_fab"),
            *("pull_object", "confirm_message_received", "trusted_entities"),
        ),
    ),
}
"""How each function is called: so many arguments by place, and these by name."""


def named(path):
    module, _, names = path.partition(":")
    found = import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize("path", CALLS)
def test_a_private_function_takes_our_call(path):
    places, names = CALLS[path]

    inspect.signature(named(path)).bind(*range(places), **dict.fromkeys(names))


@pytest.mark.parametrize(
    ("owner", "methods"),
    [
        (
            "flwr.supernode.nodestate:NodeState",
            (
                *("get_tasks", "finish_task", "get_messages_legacy"),
                "delete_messages",
            ),
        ),
        ("flwr.supercore.object_store:ObjectStore", ("delete",)),
        (
            "flwr.supercore.runtime:RuntimeHttpClient",
            (
                *("AcquireTask", "PullMessages", "PullObject", "PullTaskInput"),
                *("ConfirmMessageReceived", "close"),
            ),
        ),
        ("flwr.superlink.grid.http_grid:HttpGrid", ("pull_messages", "push_messages")),
    ],
    ids=lambda value: str(value).rpartition(":")[2],
)
def test_a_private_class_has_our_methods(owner, methods):
    assert all(callable(getattr(named(owner), name)) for name in methods)


# ---- sentences, paths and options


@pytest.fixture(scope="module")
def written():
    """Return what Flower's programs are written in, with strings in one piece."""
    root = Path(import_module("flwr").__file__).parent
    folders = ("cli", "common", "server", "supercore", "superlink", "supernode")
    files = (file for name in folders for file in (root / name).rglob("*.py"))
    text = "\n".join(file.read_text() for file in files)
    return re.sub(r'"\s*\n\s*f?"', "", text)


@pytest.mark.parametrize(
    "said",
    [
        *commands.SUPERNODE_SIGNS,
        *(commands.KEY_IN_USE, commands.ACTIVATION_REFUSED),
        *(f'"{ACQUIRE_TASK}"', '"/health"'),
        "Successfully started run {",
    ],
)
def test_a_sentence_stands_in_flowers_source(written, said):
    assert said in written


def test_the_line_of_a_run_that_has_started_is_read():
    assert commands.STARTED_RUN.search("Successfully started run 123 in x")[1] == "123"


@pytest.mark.parametrize(
    "option",
    [
        *commands.TAKEN,
        *("--superlink", "--root-certificates", "--auth-supernode-private-key"),
        *("--node-config", "--host", "--port", "--insecure", "--database"),
        *("--ssl-ca-certfile", "--ssl-keyfile", "--enable-supernode-auth"),
        *("--stream", "--format", "--run-id"),
    ],
)
def test_an_option_is_one_of_flowers(written, option):
    assert f'"{option}"' in written


@pytest.mark.parametrize(
    "variable",
    [
        "FLWR_HOME",
        "FLWR_TELEMETRY_ENABLED",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION",
        "FLWR_DISABLE_UPDATE_CHECK",
    ],
)
def test_a_variable_is_one_of_flowers(written, variable):
    assert f'"{variable}"' in written


def test_clients_and_runs_call_where_we_think():
    called = {path for _, path in named(f"{TRANSLATED}:PROTOBUF_REQUEST_TYPES")}
    fleet = {path for path in called if path.startswith("/v1/fleet/")}

    assert commands.START_RUN in called
    assert commands.ACTIVATE in fleet
    assert all(commands.FLEET.fullmatch(path) for path in fleet)


def test_the_superlink_refuses_a_client_with_our_code():
    from flwr.supercore.error import ApiErrorCode

    found = ApiErrorCode(commands.ACTIVATION_FAILED)
    assert found.name == "FLEET_NODE_ACTIVATION_FAILED"


def test_clocks_may_differ_by_as_much_as_we_think():
    found = import_module("flwr.common.constant")
    drift = found.SYSTEM_TIME_TOLERANCE
    assert drift == commands.MAX_AHEAD
    assert found.TIMESTAMP_TOLERANCE + drift == commands.MAX_BEHIND


def test_a_run_that_came_to_its_end_has_our_status():
    from flwr.common.constant import Status, SubStatus

    assert f"{Status.FINISHED}:{SubStatus.COMPLETED}" == commands.COMPLETED


# ---- behaviour


def test_the_door_reads_flowers_headers():
    constant = import_module("flwr.supercore.constant")
    common = import_module("flwr.common.constant")

    assert {
        node_auth.KEY_HEADER: node_auth.KEY_HEADER.decode(),
        node_auth.SIGNATURE_HEADER: node_auth.SIGNATURE_HEADER.decode(),
        node_auth.TIME_HEADER: node_auth.TIME_HEADER.decode(),
    } == {
        node_auth.KEY_HEADER: constant.FLEET_HTTP_PUBLIC_KEY_HEADER,
        node_auth.SIGNATURE_HEADER: constant.FLEET_HTTP_SIGNATURE_HEADER,
        node_auth.TIME_HEADER: common.TIMESTAMP_HEADER,
    }


def test_flower_cuts_a_tensor_where_we_think():
    from fcl_flower.rounds.byte_counts import CHUNK_BYTES

    tensor = Array("int8", (2 * CHUNK_BYTES + 1,), "x", bytes(2 * CHUNK_BYTES + 1))

    body = tensor.deflate()
    assert body.count(b"0, 0, ") + body.count(b"[0, 0") >= 1
    assert len(tensor.children) == 2  # equal pieces are one


def test_a_worker_imports_nothing_of_ours():
    """A run may bring its own code, under the names of ours."""
    for module in (worker, streaming):
        tree = ast.walk(ast.parse(Path(module.__file__).read_text()))
        taken = {node.module for node in tree if isinstance(node, ast.ImportFrom)}
        assert not [name for name in taken if name.startswith("fcl_flower")]
