"""Was a sample among those that a client trained on? Its loss is lower then.

Yeom et al., CSF 2018, https://arxiv.org/abs/1709.01604: the attacker knows a sample and
its label, and calls it a member where the loss is low. The measure is the area under
the curve of both errors over all thresholds (AUC): 0.5 is guessing.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from watched import WatchedRun, added

from clients.fedweit.client import with_global_base
from fcl_flower.core.types import AnyArray, Arrays
from fcl_flower.data.examples import Examples
from fcl_flower.training.tensors import load

SMALL = {
    **{"clients": 3, "dataset": "digits", "model": "small", "rounds": 3, "epochs": 30},
    **{"max_train_per_class": 24, "early_stopping_patience": 0, "lr_patience": 0},
}


def of_fedweit(seed: int) -> Mapping[str, float]:
    """Attack the tasks of others with what a client of FedWeIT receives."""
    run = WatchedRun(
        **{**SMALL, "tasks": 3, "classes_per_task": 3},
        strategy={"name": "fedweit", "knowledge": "all"},
        seed=seed,
    )
    bases: dict[int, Arrays] = {}
    adapters: dict[tuple[int, int], Arrays] = {}
    for exchange in run.exchanges:
        sent = exchange.received["base"]  # what has changed since it was sent last
        bases[exchange.client] = with_global_base(
            bases.get(exchange.client, sent), sent
        )
        for group, arrays in exchange.received.items():
            if group.startswith("adapters/"):
                _, client, task = group.split("/")
                adapters[int(client), int(task)] = arrays
    scores: dict[str, list[float]] = {}
    for (client, task), adapter in adapters.items():
        members = run.examples(client, task, "train")
        others = run.examples(client, task, "test")
        known, strangers = _halves(others)
        base = bases[(client + 1) % SMALL["clients"]]  # as another client has it
        for name, weights in (
            ("base alone", base),
            ("base and adapter", added(base, adapter)),
        ):
            losses = _losses_under_a_head_of_its_own(run, weights, known)
            scores.setdefault(name, []).append(_auc(losses(members), losses(strangers)))
        learner, state = run.learner(client)

        def own(examples: Examples, task: int = task) -> np.ndarray:
            with torch.no_grad():
                logits = learner.predict(state, {}, task, examples.x)  # noqa: B023
            return _losses(logits, examples)

        scores.setdefault("the whole model, which is not sent", []).append(
            _auc(own(members), own(strangers))
        )
    return {f"FedWeIT, {name}": float(np.mean(all_)) for name, all_ in scores.items()}


def of_fedavg(seed: int) -> Mapping[str, float]:
    """Attack the samples of each client with its model, and with the mean of all."""
    run = WatchedRun(
        **{**SMALL, "tasks": 1, "classes_per_task": 10},
        strategy="fedavg",
        scenario={"name": "class-incremental", "split": "iid"},
        seed=seed,
    )
    clients = range(SMALL["clients"])
    updates = [run.last(client).sent["base"] for client in clients]
    sizes = [len(run.examples(client, 0, "train").y) for client in clients]
    mean = {
        name: np.average([np.asarray(u[name]) for u in updates], 0, weights=sizes)
        for name in updates[0]
    }
    model = run.model()
    scores: dict[str, list[float]] = {}
    for client in clients:
        members, others = (run.examples(client, 0, s) for s in ("train", "test"))
        for name, weights in (("its update", updates[client]), ("the mean", mean)):
            losses = [
                _losses(_logits(model, weights, examples), examples)
                for examples in (members, others)
            ]
            scores.setdefault(name, []).append(_auc(*losses))
    return {f"FedAvg, {name}": float(np.mean(all_)) for name, all_ in scores.items()}


def _losses_under_a_head_of_its_own(
    run: WatchedRun, weights: Arrays, known: Examples
) -> Callable[[Examples], np.ndarray]:
    """Return the losses of samples under a head that the attacker has trained."""
    model = run.model()
    load(model, {name: np.asarray(t, np.float32) for name, t in weights.items()})
    model.eval()

    def features(examples: Examples) -> np.ndarray:
        with torch.no_grad():
            return model.body(examples.x).numpy()

    head = LogisticRegression(max_iter=2000).fit(features(known), known.y.numpy())

    def losses(examples: Examples) -> np.ndarray:
        shares = head.predict_proba(features(examples))
        return -np.log(shares[np.arange(len(shares)), examples.y.numpy()] + 1e-12)

    return losses


def _logits(
    model: torch.nn.Module, weights: Mapping[str, AnyArray], examples: Examples
) -> torch.Tensor:
    load(model, {name: np.asarray(t, np.float32) for name, t in weights.items()})
    model.eval()
    with torch.no_grad():
        return model(examples.x, 0)


def _losses(logits: torch.Tensor, examples: Examples) -> np.ndarray:
    return torch.nn.functional.cross_entropy(
        logits, examples.y, reduction="none"
    ).numpy()


def _halves(examples: Examples) -> tuple[Examples, Examples]:
    first = torch.arange(len(examples.y)) % 2 == 0
    return (
        Examples(examples.x[first], examples.y[first]),
        Examples(examples.x[~first], examples.y[~first]),
    )


def _auc(members: np.ndarray, strangers: np.ndarray) -> float:
    truth = np.repeat([1, 0], [len(members), len(strangers)])
    return float(roc_auc_score(truth, -np.concatenate([members, strangers])))
