"""A clock that stands still while nobody is heard, and Flower's states that use it."""

from datetime import UTC, datetime

import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.common.constant import Status, SubStatus
from flwr.server.superlink.linkstate import sql_linkstate
from flwr.supercore.constant import TaskType
from flwr.supercore.corestate import in_memory_corestate, sql_corestate
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
)
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supernode.nodestate import in_memory_nodestate

from fcl_flower.deploy.speedups.pauses import STORE, PatientClock, outlast_pauses

RUN = 7
# Of Flower's migrations.
pytestmark = pytest.mark.filterwarnings("ignore:No path_separator:DeprecationWarning")


class Clock:
    """Seconds that pass by a call alone."""

    def __init__(self):
        self.seconds = 1.75e9

    def __call__(self):
        return self.seconds

    def now(self):
        return datetime.fromtimestamp(self.seconds, UTC)

    def go(self, seconds):
        self.seconds += seconds


@pytest.fixture
def clock():
    return Clock()


# ---- the clock


def test_the_clock_shows_the_time_while_it_is_looked_at(clock):
    patient, began = PatientClock(clock), clock()

    for _ in range(100):
        clock.go(9.0)
        assert patient() == clock()
        patient.look()

    assert patient() == began + 900


def test_the_clock_stands_still_without_a_look_and_never_jumps(clock):
    patient, began = PatientClock(clock), clock()

    clock.go(10.0)
    assert patient() == began + 10
    clock.go(3000.0)
    assert patient() == began + 10
    patient.look()
    assert patient() == began + 10
    clock.go(5.0)
    assert patient() == began + 15


def test_a_clock_that_is_set_back_goes_on_from_there(clock):
    patient = PatientClock(clock)

    clock.go(-500.0)
    patient.look()
    clock.go(4.0)

    assert patient() == clock()


# ---- Flower's states


def link_state(tmp_path):
    from flwr.superlink.federation import NoOpFederationManager

    state = sql_linkstate.SqlLinkState(
        str(tmp_path / "superlink.db"), NoOpFederationManager(), InMemoryObjectStore()
    )
    state.initialize()
    return state


def node_state(tmp_path):
    return in_memory_nodestate.InMemoryNodeState(InMemoryObjectStore())


LINK = (
    link_state,
    (sql_corestate.SqlCoreState, "_cleanup_expired_task_tokens"),
    (sql_corestate, sql_linkstate),
)
NODE = (
    node_state,
    (in_memory_corestate.InMemoryCoreState, "_cleanup_expired_task_tokens_locked"),
    (in_memory_corestate, in_memory_nodestate),
)


@pytest.fixture
def opened(clock, monkeypatch, tmp_path):
    def new(make, given, modules):
        state, look = given
        for name in (look, STORE):
            monkeypatch.setattr(state, name, vars(state)[name])  # put back at the end
        for module in modules:
            monkeypatch.setattr(module, "now", clock.now)
        outlast_pauses(state, look, modules)
        return make(tmp_path)

    return new


@pytest.fixture(params=[LINK, NODE], ids=["link", "node"])
def state(request, opened):
    return opened(*request.param)


@pytest.fixture
def task(state):
    """A task that runs: the state that knows it, its number, its token."""
    number = state.create_task(task_type=TaskType.SERVER_APP, run_id=RUN)
    token = state.claim_task(number)
    assert state.activate_task(number)
    return state, number, token


def status(state, number):
    (found,) = state.get_tasks(task_ids=[number])
    return found.status


def test_a_task_outlives_a_pause_of_the_program_that_hears_it(task, clock):
    state, number, token = task

    for _ in range(3):
        clock.go(100_000.0)
        assert state.get_task_by_token(token) is not None
        assert state.acknowledge_task_heartbeat(number)

    assert status(state, number).status == Status.RUNNING
    assert state.finish_task(number, SubStatus.COMPLETED, "")


def test_a_task_that_is_silent_while_others_are_heard_is_given_up(task, clock):
    state, number, token = task

    for second in range(61):
        assert status(state, number).status == Status.RUNNING, second
        clock.go(1.0)

    assert status(state, number).sub_status == SubStatus.FAILED
    assert state.get_task_by_token(token) is None
    assert not state.acknowledge_task_heartbeat(number)


def test_an_object_that_comes_twice_is_stored_and_another_is_not(state):
    sent = RecordDict({"base": ConfigRecord({"round": 1})})
    session = state.start_session(RUN)
    (name, *_) = state.preregister_object_tree(get_object_tree(sent), session)
    content = get_all_nested_objects(sent)[name].deflate()

    assert state.store_object(RUN, session, name, content)
    assert state.store_object(RUN, session, name, content)
    assert not state.store_object(RUN, session, name, content + b"x")
    assert not state.store_object(RUN, session, "0" * 64, content)


def test_a_node_is_there_after_a_pause_and_gone_after_a_silence(opened, clock):
    kept = opened(*LINK)
    node = kept.create_node("", "", b"key", 0)
    assert kept.activate_node(node, 30.0)

    def online():
        kept.get_tasks()
        (found,) = kept.get_node_info(node_ids=[node])
        return found.status == "online"

    clock.go(5000.0)
    assert online()
    for _ in range(61):
        clock.go(1.0)
        kept.get_tasks()
    assert not online()


def test_flower_alone_gives_a_task_up_after_a_pause(tmp_path, clock, monkeypatch):
    for module in LINK[2]:
        monkeypatch.setattr(module, "now", clock.now)
    state = link_state(tmp_path)
    number = state.create_task(task_type=TaskType.SERVER_APP, run_id=RUN)
    state.claim_task(number)
    assert state.activate_task(number)

    clock.go(75.0)

    assert status(state, number).sub_status == SubStatus.FAILED
