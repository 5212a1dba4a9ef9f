"""What every test needs: an identity for Flower, and no way to a model hub."""

import os
import signal

import hypothesis
import pytest

# Read once, when Hugging Face's library is imported.
os.environ["HF_HUB_OFFLINE"] = "1"

# What is right does not depend on how busy the machine is.
hypothesis.settings.register_profile("untimed", hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Begin with tests that start processes: they take longest, and mostly wait.

    Folders named on the command line would not do: of those that lie in each other
    pytest keeps the outer one, in the order of its files.
    """
    for folder in ("tests/project/", "tests/runtime/"):
        items.sort(key=lambda item: not item.nodeid.startswith(folder))


@pytest.fixture(scope="session", autouse=True)
def interrupts():
    """Let interrupts interrupt: shells make background commands deaf to them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def flower_identity():
    """Flower builds no Message outside a run: give the test process an identity."""
    from fcl_flower.runtime.in_process.identity import flower_identity

    with flower_identity():
        yield


@pytest.fixture
def one_thread():
    """Small batches on many threads spend their time waiting for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def backbone(tmp_path_factory):
    """Return the folder of a tiny encoder by kind, written when first asked for."""
    known = {}

    def of(kind):
        import encoders

        if kind not in known:
            known[kind] = encoders.saved(tmp_path_factory.mktemp(kind), kind)
        return known[kind]

    return of
