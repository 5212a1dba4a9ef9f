"""What a method's smallest run shows to whoever looks closely, once for all tests.

`watched` runs it with both sides wrapped, `spoilt` with other test samples, `elsewhere`
on another device, and `alone` without communication. What of the package they touch is
named here and in no test.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pretended_device
import pytest
import torch
from every_method import smallest
from fakes import exact, run_in_process, tiny
from memory import peak_of
from mutants import with_array
from torch.optim.adam import adam
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.optim.sgd import sgd

from fcl_flower.algorithms.base import Turn
from fcl_flower.algorithms.registry import algorithm, algorithms
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import Update
from fcl_flower.data import examples
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.language import LanguageModel
from fcl_flower.rounds import client as clients_side
from fcl_flower.rounds import messages
from fcl_flower.rounds.client import forget_runs, run_parts
from fcl_flower.rounds.codec import Encoded, compress
from fcl_flower.rounds.replies import ReplyReader
from fcl_flower.setup.build import Built
from fcl_flower.training import loop, optimizers

NAMES = sorted(algorithms())
CLASSIFIERS = [name for name in NAMES if name != "disco"]
"""The methods whose answers are classes, and no texts."""
VARIANTS = {
    "fedseit with queries": {"strategy.knowledge": "sit:1"},
    "concept-matching with hidden concepts": {
        **{"scenario": "concepts", "classes_per_task": 0, "evaluate_every": 1},
        "strategy.concepts": 2,
    },
    "fedavg with masked logits": {"head": "single", "mask_logits": True},
    "fedavg with a masked loss": {
        **{"head": "single", "mask_logits": True, "mask_loss": True}
    },
}
SETTINGS = {
    **{"scenario": "overlapped", "clients": 2, "tasks": 2, "rounds": 2},
    **{"max_train_per_class": 24, "max_test_per_class": 12},
}
UNUSUAL = {
    **{"optimizer": "sgd", "momentum": 0.9, "learning_rate": 0.01},
    "precision": "bfloat16",
}
PAGE = 4096
BOMB = compress(b"", np.zeros(2**28, np.uint8), b"")


@dataclass
class Training:
    """One call of a learner to train: what it was given and what it returned."""

    stage: Any
    learner: Any
    received: Any
    state: Any
    note: tuple


@dataclass
class Seen:
    """What was seen of one run."""

    folder: Path
    transport: Any = None
    strategies: list = field(default_factory=list)
    learners: list = field(default_factory=list)
    problems: list = field(default_factory=list)
    """What was changed, did not travel, cannot be repeated or is no prediction."""
    steps: set = field(default_factory=set)
    """The optimizers that have made a step."""
    lowered: set = field(default_factory=set)
    """Where and to what autocast lowered the precision."""
    modes: list = field(default_factory=list)
    """Whether the network was in training mode at each pass with gradients."""
    looks: list = field(default_factory=list)
    """What was looked at of test data."""
    moments: list = field(default_factory=list)
    """Round, client, and the optimizer's moments before and after."""
    trainings: list[Training] = field(default_factory=list)
    updates: list = field(default_factory=list)
    """All that was aggregated, each update with the server's state before it."""
    notes: list = field(default_factory=list)
    """All that learners returned but predictions, bit by bit."""
    peaks: dict = field(default_factory=dict)
    """MB that it took to refuse a claim, by tensor and claim."""
    labels: set = field(default_factory=set)
    """All that any client has trained on so far."""
    answers: list = field(default_factory=list)
    """Of each prediction between two trainings: `labels` then, and the logits."""
    trains: bool = False


def settings_of(name, folder):
    """Return the settings of a method or of a variant of it."""
    method, _, _ = name.partition(" ")
    folder.mkdir(exist_ok=True)
    found = SETTINGS | smallest(method, folder) | VARIANTS.get(name, {})
    return found | ({"strategy.search_steps": 20} if name == "glfc" else {})


def grows(name):
    """Return whether a method takes a head that grows with the classes."""
    entry = algorithm(name)
    blind = entry.trainer and not entry.needs_classes
    joint = entry.defaults.get("scenario.joint")
    return name in CLASSIFIERS and not joint and not blind


# ---- how to look


class Sealed:
    """Test examples; notes who looks at them, and shows them to none."""

    def __init__(self, looks):
        object.__setattr__(self, "looks", looks)

    def __getattribute__(self, name):
        object.__getattribute__(self, "looks").append(name)
        raise AssertionError(f"test data: {name} was looked at")

    def __iter__(self):
        return self.x

    def __len__(self):
        return self.y

    def __getitem__(self, key):
        return self.x


def sealed(data, looks):
    return TaskData(data.train, data.valid, Sealed(looks), data.classes)


def values_of(thing):
    """Return an argument as values that compare bit by bit."""
    if isinstance(thing, Turn):
        return [values_of(part) for part in thing]
    if isinstance(thing, TaskData):
        return samples(thing.train), samples(thing.valid)
    if isinstance(thing, Examples):
        return samples(thing)
    if isinstance(thing, Update):
        return exact(thing.payload)
    if not isinstance(thing, Mapping):
        return None
    if all(isinstance(value, Mapping | Update) for value in thing.values()):
        return {key: values_of(value) for key, value in thing.items()}
    return exact({"tensors": thing})


def samples(found):
    return exact({"samples": {"x": found.x.numpy(), "y": found.y.numpy()}})


def after_travel(payload):
    return exact(messages.decode_payload(messages.MessageEncoder().payload(payload)))


def watch(seen, thing, method, *, repeat=False):
    """Note if a method changes its arguments or returns what cannot travel."""
    inner = getattr(thing, method, None)
    if inner is None:
        return
    what = f"{type(thing).__name__}.{method}"

    def outer(*given):
        before = [values_of(one) for one in given]
        found = inner(*given)
        if before != [values_of(one) for one in given]:
            seen.problems.append(f"{what} changes an argument")
        sent = found if isinstance(found, tuple) else (found,)
        for payload in (getattr(one, "payload", one) for one in sent):
            if isinstance(payload, Mapping) and after_travel(payload) != exact(payload):
                seen.problems.append(f"{what} is not the same after it travelled")
        if repeat and exact(found) != exact(inner(*given)):
            seen.problems.append(f"{what} gives two results")
        return found

    setattr(thing, method, outer)


def watch_strategy(seen, strategy):
    for method in ("init", "send", "aggregate_query"):
        watch(seen, strategy, method)
    watch(seen, strategy, "combine", repeat=True)
    combine = strategy.combine

    def outer(state, stage, updates):
        seen.updates.extend((state, update) for update in updates.values())
        return combine(state, stage, updates)

    strategy.combine = outer
    seen.strategies.append(strategy)
    return strategy


def watch_learner(seen, learner):
    for method in ("init", "train", "answer_query", "select_model"):
        watch(seen, learner, method)
    note_learner(seen, learner, seal=True)
    predict = learner.predict

    def outer(state, received, task, x):
        before = exact(state), exact(received)
        logits = predict(state, received, task, x)
        if before != (exact(state), exact(received)):
            seen.problems.append("predict changes an argument")
        if not torch.isfinite(logits).all():
            seen.problems.append("predictions are not finite")
        tokens = isinstance(learner.model.body, LanguageModel)
        if len(logits) != len(x) or logits.dim() != 2 + tokens:
            seen.problems.append(f"predictions have shape {tuple(logits.shape)}")
        if not seen.trains:
            seen.answers.append((sorted(seen.labels), logits))
        return logits

    learner.predict = outer
    seen.learners.append(learner)
    return learner


def note_learner(seen, learner, *, seal=False):
    """Note in ``seen`` all that a learner returns, but its predictions."""
    train = learner.train

    def noted(turn):
        _, received, stage, data = turn
        given = sealed(data, seen.looks) if seal else data
        seen.trains = True
        new, update = train(turn._replace(data=given))
        seen.trains = False
        seen.labels.update(data.train.y.flatten().tolist())
        metrics = {key: float(value) for key, value in update.metrics.items()}
        note = (
            *("trained", stage, samples(data.train), samples(data.valid)),
            *(exact(received), exact(new), exact(update.payload)),
            *(update.num_examples, metrics),
        )
        seen.notes.append(note)
        seen.trainings.append(Training(stage, learner, received, new, note))
        return new, update

    learner.train = noted
    if hasattr(learner, "answer_query"):
        answer_query = learner.answer_query

        def answered(turn):
            data = turn.data
            given = sealed(data, seen.looks) if seal else data
            answer = answer_query(turn._replace(data=given))
            seen.notes.append(("answered", exact(answer)))
            return answer

        learner.answer_query = answered
    select_model = learner.select_model

    def selected(state, received, given):
        chosen = select_model(state, received, given)
        seen.notes.append(("chosen", samples(given), exact(chosen)))
        return chosen

    learner.select_model = selected
    return learner


def watch_optimizers(seen, patch):
    """Note which optimizers make a step, PyTorch's and our copies of its arithmetic."""

    def stepped(arithmetic):
        def step(*given, **named):
            seen.steps.add(arithmetic)
            return arithmetic(*given, **named)

        return step

    patch.setattr(optimizers, "adam", stepped(adam))
    patch.setattr(optimizers, "sgd", stepped(sgd))
    return register_optimizer_step_post_hook(lambda one, *_: seen.steps.add(type(one)))


def watch_fits(seen, patch):
    """Note the moments before and after each training of a task."""
    for entry in algorithms().values():
        entry.load_client()  # so that all that train are there to be watched
    fit = loop.fit

    def fitted(job):
        before = exact({"moments": job.optimizer_state})
        done = fit(job)
        after = exact({"moments": done.optimizer_state})
        if job.round:  # 0: something that is fitted outside of any task
            seen.moments.append((job.round, job.client, before, after))
        return done

    for name, module in [*sys.modules.items()]:
        ours = name.startswith(("clients.", "fcl_flower."))
        if ours and getattr(module, "fit", None) is fit:
            patch.setattr(module, "fit", fitted)


def watch_network(seen, patch):
    """Note precision, and the mode of a network that is loaded for evaluation."""
    autocast = torch.autocast

    def lowered(device, dtype=None, **named):
        if named.get("enabled", True):
            seen.lowered.add((device, dtype))
        return autocast(device, dtype, **named)

    def note(module, _):
        if torch.is_grad_enabled():
            seen.modes.append(all(part.training for part in module.modules()))

    def loaded(network):
        network.eval().body.register_forward_pre_hook(note)
        return network

    patch.setattr(torch, "autocast", lowered)
    build_by(patch, "network", loaded)


# ---- hostile claims


def one_entry_a_page(shape, dtype):
    """Return a few bytes that fill every page of a tensor with zeros left out."""
    data = _frame_of_pages(math.prod(shape), dtype)
    return Encoded(dtype, shape, "fcl.dense.bitmap+zstd", data)


@cache
def _frame_of_pages(entries, dtype):
    present = np.zeros(entries, np.bool_)
    present[:: PAGE // np.dtype(dtype).itemsize] = True
    values = np.ones(np.count_nonzero(present), dtype)
    return compress(b"", values, np.packbits(present, bitorder="little").tobytes())


def claims(array):
    """Yield what a tensor may be replaced by, each of 256 MB."""
    size = np.dtype(array.dtype).itemsize
    entries = 2**28 // size
    inner = tuple(array.shape[1:])
    if 0 < math.prod(inner) < entries:
        yield one_entry_a_page((entries // math.prod(inner), *inner), array.dtype)
    yield one_entry_a_page((entries,), array.dtype)
    form = "fcl.sparse.bitmap" if "sparse" in array.form else "fcl.dense"
    yield Encoded(array.dtype, array.shape, f"{form}+zstd", BOMB)


def claim_too_much(seen, patch):
    """Replace each tensor of the first update by claims; note what refusals take."""
    read = ReplyReader._update

    def read_after_claims(reader, client, content, state, base_norm):
        honest = {} if seen.peaks else content.tensors
        for group, arrays in honest.items():
            for tensor, array in arrays.items():
                for claim in claims(array):
                    hostile = with_array(content, group, tensor, claim)

                    def refused(hostile=hostile):
                        with pytest.raises(WireError):
                            read(reader, client, hostile, state, base_norm)

                    key = (group, tensor, claim.shape, claim.form)
                    seen.peaks[key] = peak_of(refused)
        return read(reader, client, content, state, base_norm)

    patch.setattr(ReplyReader, "_update", read_after_claims)


# ---- the runs


def build_by(patch, name, change):
    """Let a method of `Built` return what ``change`` makes of its result."""
    make = getattr(Built, name)
    patch.setattr(Built, name, lambda *given, **named: change(make(*given, **named)))


def keep_nothing(patch):
    """Build all that clients of a process share anew for each message."""

    def anew(*given):
        forget_runs()
        return run_parts(*given)

    patch.setattr(clients_side, "run_parts", anew)


def watched(name, folder):
    """Run a method once; return what was seen of its network, training and sides."""
    seen = Seen(folder / "run")
    with pytest.MonkeyPatch.context() as patch:
        build_by(patch, "strategy", partial(watch_strategy, seen))
        build_by(patch, "learner", partial(watch_learner, seen))
        watch_fits(seen, patch)
        watch_network(seen, patch)
        claim_too_much(seen, patch)
        counted = watch_optimizers(seen, patch)
        try:
            given = settings_of(name, folder) | UNUSUAL
            seen.transport = run_in_process(tiny(seen.folder, **given))
        finally:
            counted.remove()
    return seen


def garbage(found):
    nothing = 7.0 if found.x.is_floating_point() else 1  # texts: one word
    x = torch.full_like(found.x, nothing)
    if found.y.dim() > 1:  # the signs of tokens say which are answers
        x = x * found.x.sign()
    return Examples(x, torch.zeros_like(found.y))


def spoilt(name, folder):
    """Run it with other test samples, and with nothing kept between messages."""
    seen, read = Seen(folder / "spoilt"), examples._examples

    def split_of(scenario, plan, split, indices, form):
        found = read(scenario, plan, split, indices, form)
        return garbage(found) if split == "test" else found

    with pytest.MonkeyPatch.context() as patch:
        build_by(patch, "learner", partial(note_learner, seen))
        patch.setattr(examples, "_examples", split_of)
        keep_nothing(patch)
        examples.task_examples.cache_clear()
        try:
            given = settings_of(name, folder) | UNUSUAL
            run_in_process(tiny(seen.folder, **given))
        finally:
            examples.task_examples.cache_clear()
    return seen


def plain(name, folder):
    """Run it as users do: nothing watched, Adam, full precision."""
    seen = Seen(folder / "plain")
    run_in_process(tiny(seen.folder, **settings_of(name, folder)))
    return seen


def elsewhere(name, folder):
    """Run it as `plain` on the pretended device, and with nothing kept in between."""
    seen = Seen(folder / "elsewhere")
    given = settings_of(name, folder) | {"device": pretended_device.NAME}
    with pytest.MonkeyPatch.context() as patch:
        keep_nothing(patch)
        with pretended_device.available(patch) as used:
            run_in_process(tiny(seen.folder, **given))
        assert used
    return seen


def alone(name, folder):
    """Run it without communication, where it has any, with a head that grows."""
    seen = Seen(folder / "alone")
    given = settings_of(name, folder) | {"local_only": algorithm(name).federated}
    if grows(name):
        stream = {"name": "class-incremental", "split": "iid"}
        given |= {"scenario": stream, "head": "single", "growing_head": True}
    with pytest.MonkeyPatch.context() as patch:
        build_by(patch, "strategy", partial(watch_strategy, seen))
        build_by(patch, "learner", partial(watch_learner, seen))
        seen.transport = run_in_process(tiny(seen.folder, **given))
    return seen
