"""GLFC, server side: a mean of models, and a proxy that keeps the best old one.

Dong et al., CVPR 2022, https://arxiv.org/abs/2203.11473, section 3.3. When a client
begins a task it sends the gradients of its perturbed prototypes, one of each class. The
server finds images that have these gradients. With the images it finds the best model
of the task, which is the old model for the next task.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from fcl_flower.algorithms.base import Metrics, Report, ServerStrategy, Updates
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import Array, Arrays, Payload, TaskStage, Update, specs
from fcl_flower.core.update_checks import fits, same_tensors
from strategies.glfc import GlfcParams

if TYPE_CHECKING:
    from strategies.glfc.trainer import ProxyTrainer

BASE, BEST, OLD, OLD_CLASSES = "base", "best", "old", "meta/old"
PROTOTYPES, IMAGES, PROXY = "prototypes", "images", "meta/proxy"
_FORM = ("x", "y", "client")


class Glfc(ServerStrategy[GlfcParams]):
    """A strategy that sends clients the model, and at a task's start the old one.

    State:

    - ``base``: the model.
    - ``best``: the best model of the task for which images came last.
    - ``old``: the best model of the tasks before.
    - ``images``: ``x``, (N, C, H, W); ``y``, (N,); ``client``, (N,).
    - ``meta/proxy``: ``task``, -1 before the first images; ``accuracy`` of ``best`` on
      the images; and uint8 masks, shape (classes,), of the classes that clients have
      reported: all ``known`` ones, and those ``before`` that task.
    """

    predicts = (BASE,)
    needs_rounds = True
    robust_aggregation = True

    @override
    def prepare(self) -> None:
        self.trainer: ProxyTrainer = self.context.trainer()

    @override
    def init(self, model: Arrays) -> Payload:
        classes = len(np.asarray(model["heads.0.bias"]))
        none = np.zeros(classes, np.uint8)
        proxy = {"task": np.asarray(-1), "accuracy": np.asarray(0.0)}
        return {BASE: model, PROXY: {**proxy, "known": none, "before": none}}

    @override
    def send(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        sent = {BASE: state[BASE]}
        if self.params.transition == "known" and not stage.starts_task:
            return sent
        proxy = state[PROXY]
        # The best model of the client's own task is no old model for it.
        same = int(np.asarray(proxy["task"])) == stage.task
        model, classes = (OLD, "before") if same else (BEST, "known")
        if model in state:
            sent |= {OLD: state[model], OLD_CLASSES: {"classes": proxy[classes]}}
        return sent

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        payload = dict(update.payload)
        gradients = payload.pop(PROTOTYPES, None)
        same_tensors(payload, {BASE: state[BASE]})
        if gradients is not None:
            self._check_gradients(gradients, len(np.asarray(state[PROXY]["known"])))

    @override
    def combine(self, state: Payload, stage: TaskStage, updates: Updates) -> Payload:
        model = self.aggregation.combine_groups(updates, {BASE: state[BASE]})
        state = {**state, **model}
        images = [
            self._images(client, stage.round, update.payload[PROTOTYPES])
            for client, update in updates.items()
            if PROTOTYPES in update.payload
        ]
        new = {
            name: np.concatenate([part[name] for part in images])
            for name in _FORM
            if images
        }
        if len(new.get("y", ())):
            state = _with_images(state, stage.task, new)
        return self._with_the_best(state) if IMAGES in state else state

    @override
    def report(self, state: Payload, stage: TaskStage, metrics: Metrics) -> Report:
        if IMAGES not in state:
            return {}
        return {
            "proxy/accuracy": float(np.asarray(state[PROXY]["accuracy"])),
            "proxy/images": float(len(np.asarray(state[IMAGES]["y"]))),
        }

    def _check_gradients(self, gradients: Arrays, classes: int) -> None:
        encoded = self.trainer.encoded
        if gradients.keys() != encoded.keys():
            odd = sorted(gradients.keys() ^ encoded.keys())
            raise WireError(f"{PROTOTYPES}: tensors {odd} are missing or unknown")
        shapes = [spec.shape for spec in specs(gradients).values()]
        counts = {shape[0] if shape else 0 for shape in shapes}
        count = min(counts)
        if len(counts) > 1 or not 1 <= count <= classes:
            raise WireError(f"{PROTOTYPES}: expected 1 to {classes} gradients")
        expected = {
            name: np.broadcast_to(np.float32(0), (count, *zeros.shape))
            for name, zeros in encoded.items()
        }
        fits(PROTOTYPES, gradients, expected, sparse=False)
        labels = self.trainer.labels_of(gradients)
        if len(np.unique(labels)) < count:
            raise WireError(f"{PROTOTYPES}: expected one gradient of a class")

    def _images(self, client: int, number: int, gradients: Arrays) -> dict[str, Array]:
        y = self.trainer.labels_of(gradients)
        seed = self.context.derive("images", client, number)
        x = self.trainer.reconstruct(gradients, y, self.params.search_steps, seed)
        usable = np.isfinite(x).reshape(len(x), -1).all(1)
        return {"x": x[usable], "y": y[usable], "client": np.full(usable.sum(), client)}

    def _with_the_best(self, state: Payload) -> Payload:
        images, proxy = state[IMAGES], state[PROXY]
        x, y = np.asarray(images["x"]), np.asarray(images["y"])
        classes = np.flatnonzero(np.asarray(proxy["known"]))
        best, accuracy = state[BASE], self.trainer.accuracy(state[BASE], x, y, classes)
        if BEST in state:
            held = self.trainer.accuracy(state[BEST], x, y, classes)
            if held > accuracy:
                best, accuracy = state[BEST], held
        proxy = {**proxy, "accuracy": np.asarray(accuracy)}
        return {**state, BEST: best, PROXY: proxy}


def _with_images(state: Payload, task: int, new: Mapping[str, Array]) -> Payload:
    """Add images of a task to the state; the first of them begin the task.

    If a client has sent some of this task before, the new images replace them.
    """
    proxy, groups = state[PROXY], dict(state)
    before = proxy["before"]
    if int(np.asarray(proxy["task"])) != task:
        before = proxy["known"]
        if BEST in groups:
            groups[OLD] = groups.pop(BEST)
    else:
        held = {name: np.asarray(part) for name, part in groups[IMAGES].items()}
        others = ~np.isin(held["client"], new["client"])
        new = {name: np.concatenate([held[name][others], new[name]]) for name in _FORM}
    known = np.array(proxy["known"])
    known[new["y"]] = 1
    changes = {"task": np.asarray(task), "before": before, "known": known}
    return {**groups, IMAGES: new, PROXY: {**proxy, **changes}}
