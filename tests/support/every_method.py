"""What the smallest run of any method needs: data and a network that suit it."""

from collections.abc import Iterable

import pytest
from encoders import saved, saved_tokenizer
from language_models import instructing
from text_sets import encoded_topics

from fcl_flower.algorithms.registry import algorithm

ARCHETYPES = frozenset(
    {
        *("fedavg", "fedweit", "fedseit", "fedet", "concept-matching"),
        *("analytic", "icarl", "stl", "lorm"),
    }
)
"""A method of each kind: continuous integration runs these, `make soak` all."""


def archetypes_first(names: Iterable[str]) -> list:
    """Leave all but the archetypes, and what is made of them, to `make soak`."""
    return [
        name
        if any(name == one or name.startswith(f"{one} ") for one in ARCHETYPES)
        else pytest.param(name, marks=pytest.mark.soak)
        for name in names
    ]


def suited(name, folder):
    """Return settings with which a method learns in moments.

    Those that would choose a pre-trained encoder learn digits, but for those of which
    it is a part: they have a tiny one, which is written to ``folder``.
    """
    if name == "idbr":
        return encoded_topics(folder)
    if name == "disco":
        return instructing(folder)
    found = {}
    if algorithm(name).models:
        found = {"dataset": "digits", "model": "small"}
    if name == "fedet":
        # Without public data nothing could tell groups of classes apart.
        found["strategy.groups"] = 1
    if name in ("dolfin", "fed-lora", "lorm"):
        encoder = saved(folder / "encoder", "vit", image_size=8, num_channels=1)
        found |= {"model": "lora-vit", "model.encoder": encoder}
    if name == "fed-lora":
        # It learns one factor a round, beside features of random weights.
        found |= {"learning_rate": 0.02, "epochs": 2}
    if name == "coda-prompt":
        encoder = saved(folder / "encoder", "dinov2", image_size=8, num_channels=1)
        found |= {"model": "prompted-vit", "model.encoder": encoder}
        found |= {"model.components": 2, "model.num_blocks": 2}
    if name == "lander":
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *map(str, range(10))]
        found["strategy.encoder"] = saved_tokenizer(
            saved(folder / "bert", "bert"), words
        )
    if name in ("lander", "target"):
        sizes = {"synthetic_samples": 8, "synthetic_batch": 8, "generator_steps": 2}
        found |= {f"strategy.{key}": value for key, value in sizes.items()}
    return found


def smallest(name, folder):
    """Return settings of a method's run in a scenario whose tasks have ids.

    Args:
        name: of the method.
        folder: as of `suited`.
    """
    found = {"strategy.name": name, **suited(name, folder)}
    entry = algorithm(name)
    if entry.needs_single_head or "scenario.joint" in entry.defaults:
        found["head"] = "single"
    if name == "fedseit":
        found |= {"max_train_per_class": 12, "max_test_per_class": 8}
    return found
