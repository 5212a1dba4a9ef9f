"""The benchmark's network, as our runs find it by name."""

from simple_cnn import BATCH_SIZE, FEATURES, LEARNING_RATE

from fcl_flower.models.registry import ModelEntry

SIMPLE_CNN = ModelEntry(
    "simple_cnn:SimpleCnn",
    (3, 32, 32),
    FEATURES,
    BATCH_SIZE,
    LEARNING_RATE,
    "the network of pfl-research's CIFAR-10 benchmark",
)
