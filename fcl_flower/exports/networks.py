"""The network of one client and task, as files that need none of this project."""

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fcl_flower.algorithms.base import ClientLearner
from fcl_flower.config.parsing import Params
from fcl_flower.config.run_spec import NodeConfig
from fcl_flower.core.errors import config_error, require_extra
from fcl_flower.core.types import Payload
from fcl_flower.data.examples import Examples
from fcl_flower.data.scenarios.plan import Scenario
from fcl_flower.federation.checkpoint import FolderStateStore
from fcl_flower.federation.client import client_data
from fcl_flower.models.heads import MultiHeadModel, Network
from fcl_flower.prediction.simulated import finished_run, received
from fcl_flower.results.run_folder import CLIENTS
from fcl_flower.setup.build import Built

_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """What a client has in the end for one of its tasks.

    Attributes:
        logits: the learner's, of the task's test samples.
        class_names: name of each logit; of a task with fewer classes than others that
            of its own, which come first.
        about: what it is, as text by topic.
    """

    network: nn.Module
    test: Examples
    logits: Tensor
    class_names: tuple[str, ...]
    params: Params
    about: dict[str, str]

    @property
    def accuracy(self) -> float:
        """Fraction of the test samples whose largest logit is right."""
        right = self.logits.argmax(1) == self.test.y
        return float(right.double().mean())

    @property
    def sizes(self) -> tuple[dict[int, object]]:
        """Which sizes of the input are open: of the batch, and of a text's tokens."""
        free: dict[int, object] = {0: torch.export.Dim("batch")}
        if not self.test.x.is_floating_point():
            most = getattr(self.params, "max_tokens", None)
            free[1] = torch.export.Dim("tokens", min=1, max=most)
        return (free,)


def trained(folder: Path, client: int, task: int) -> Trained:
    """Rebuild what a client of a finished simulation predicts one of its tasks with.

    Clients and their tasks are counted from 0.

    Raises:
        ConfigError: there is no such run, client or task; the run kept no clients'
            states (``run.keep_clients``); its clients have local data, or hidden
            concepts, or models rounded on their way; or its strategy predicts with more
            than a network.
    """
    run = _run(folder)
    config = run.config
    for key, value, count in (
        ("client", client, config.scenario.clients),
        ("task", task, config.scenario.tasks),
    ):
        if not 0 <= value < count:
            raise config_error(key, value, f"0 to {count - 1}")
    plan = run.scenario
    last = plan.num_tasks - 1
    learner = run.learner(client)
    node = NodeConfig(partition_id=client)
    test = client_data(run, node, last + 1).examples(task, "test")
    saved = FolderStateStore(folder / CLIENTS / f"client-{client}").load()
    state = {} if saved is None else saved.state  # of one that never trained
    sent = received(run, folder, client)
    logits, weights = _prediction(learner, state, sent, task, test.x)
    network = learner.predictor(state, sent, task)
    network = network or _network(learner.model, task, weights)
    if network is None or not _same(network(test.x), logits):
        expected = "one that predicts with a network alone, such as fedavg or fedweit"
        raise config_error("strategy", config.title, expected)
    about = {
        "strategy": config.title,
        "seed": str(config.run.seed),
        "client": str(client),
        "task": str(task),
        "model": config.model.name,
        "input_shape": str(list(test.x.shape[1:])),
        "classes": ", ".join(plan.clients[client][task].class_names),
    }
    names = _class_names(plan, client, task, learner.model.single_head)
    return Trained(network, test, logits, names, run.model_params, about)


def _run(folder: Path) -> Built:
    run = finished_run(folder)
    config = run.config
    if run.scenario_entry.hidden or run.spec.local_data:
        expected = "one whose tasks and samples are known here"
        raise config_error("scenario.name", config.scenario.name, expected)
    if config.federation.wire_dtype != "float32":
        expected = "float32, as clients have other models than the server"
        raise config_error(
            "federation.wire_dtype", config.federation.wire_dtype, expected
        )
    return run


def _class_names(
    plan: Scenario, client: int, task: int, single_head: bool
) -> tuple[str, ...]:
    if not single_head:
        return plan.clients[client][task].class_names
    names = {}
    for one in (one for tasks in plan.clients for one in tasks):
        for label, name in zip(one.classes, one.class_names, strict=True):
            names[plan.label_index(one.dataset, label)] = name
    return tuple(names[index] for index in range(plan.num_labels))


def _prediction(
    learner: ClientLearner[Any], state: Payload, received: Payload, task: int, x: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Predict, and note the weights with which the learner called its network.

    They are taken in the moment of the call: some learners compose weights that are
    nowhere else. Empty where the network was not called as a whole.
    """
    weights: dict[str, Tensor] = {}

    def note(model: nn.Module, _: object) -> None:
        weights.update({n: t.clone() for n, t in model.state_dict().items()})

    handle = learner.model.register_forward_pre_hook(note)
    try:
        with torch.no_grad():
            return learner.predict(state, received, task, x), weights
    finally:
        handle.remove()


def _same(logits: Tensor, expected: Tensor) -> bool:
    # A learner may have brought its samples through the frozen part of an encoder apart
    # from the rest, and some processors then round the last bit otherwise.
    return logits.shape == expected.shape and torch.allclose(
        logits, expected, _TOLERANCE, _TOLERANCE
    )


def _network(
    model: MultiHeadModel, task: int, weights: Mapping[str, Tensor]
) -> Network | None:
    if not weights:
        return None
    index = model.head_index(task)
    network = Network(model.body, model.heads[index])
    head = f"heads.{index}."
    network.load_state_dict(
        {
            name.replace(head, "head."): tensor
            for name, tensor in weights.items()
            if name.startswith(("body.", head))
        }
    )
    return network


# ---- files


def write_pt(found: Trained, path: Path) -> None:
    """Write the state as PyTorch does; ``torch.load`` opens it with weights only."""
    torch.save(found.network.state_dict(), path)


def write_safetensors(found: Trained, path: Path) -> None:
    """Write the state as safetensors, with what it is in the header."""
    with require_extra("onnx", "format safetensors"):
        from safetensors.torch import save_file
    tensors = {n: t.contiguous() for n, t in found.network.state_dict().items()}
    save_file(tensors, path, found.about)


def write_onnx(found: Trained, path: Path) -> None:
    """Write the whole network, from ``input`` of any batch size to ``logits``."""
    with require_extra("onnx", "format onnx"):
        import onnx  # noqa: F401 - torch needs it
        import onnxscript  # noqa: F401 - likewise
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # Of torch about itself: nothing that a user could mend.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                found.network,
                (found.test.x[:2],),
                path,
                input_names=["input"],
                output_names=["logits"],
                dynamic_shapes=found.sizes,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    finally:
        logger.setLevel(level)
