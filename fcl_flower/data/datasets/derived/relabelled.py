"""A data set whose classes go by other names: the same inputs, other labels."""

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.datasets.base import Dataset


def relabelled(name: str, places: int, whole: Dataset) -> Dataset:
    """Return a data set whose classes have the names of others.

    Samples of the first class are called as those of the class ``places`` behind it
    were, and so on in a circle. Where classes of one name are one class
    (``scenario.merge_labels``), what is right for the one set is wrong for the other:
    concept shift by permuted labels, as in clustered federated learning (Sattler et
    al., TNNLS 2020).

    Args:
        name: what the set is called from now on.
        places: at least 1, and below the number of classes.
        whole: where the samples come from.

    Raises:
        ConfigError: another number of places.
    """
    if not 0 < places < whole.num_classes:
        raise ConfigError(
            f"dataset: got {name!r}, expected relabelled-N with N from 1 to "
            f"{whole.num_classes - 1}, below the number of classes"
        )
    names = whole.class_names
    moved = (*names[places:], *names[:places])
    return type(whole)(name, whole.train, whole.test, moved)
