"""Which classes of different data sets are one class of a single head."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from fcl_flower.data.dataset import DataSet
from fcl_flower.errors import ConfigError


def same_labels(
    text: str, sources: Sequence[DataSet]
) -> Mapping[tuple[str, int], tuple[str, int]]:
    """Return what (dataset, label id) pairs stand for, where it is not themselves.

    Classes of one name are one class, that of the first data set of the group that has
    it.

    Args:
        text: groups of names of data sets, such as ``yelp=amazon,a=b=c``.
        sources: all data sets, those of the server included.

    Raises:
        ConfigError: a group is not of different data sets of the run, a data set is in
            two groups, or one has no class name in common with those before it.
    """
    known = {source.name: source for source in sources}
    groups = [
        [name.strip() for name in group.split("=")]
        for group in text.split(",")
        if group.strip()
    ]
    names = [name for group in groups for name in group]
    for name in names:
        if name not in known:
            raise _refused(
                text, f"data sets of the run, not {name!r}: {', '.join(known)}"
            )
    if len(set(names)) < len(names) or any(len(group) == 1 for group in groups):
        raise _refused(text, "groups of two or more names, each of them once")
    same = {}
    for group in groups:
        first: dict[str, tuple[str, int]] = {}
        for name in group:
            class_names = known[name].class_names
            if first and first.keys().isdisjoint(class_names):
                raise _refused(
                    text,
                    f"a class name that {name!r} has in common with those before it",
                )
            for label, class_name in enumerate(class_names):
                one = first.setdefault(class_name, (name, label))
                if one[0] != name:
                    same[name, label] = one
    return MappingProxyType(same)


def _refused(text: str, expected: str) -> ConfigError:
    return ConfigError(f"same-labels: got {text!r}, expected {expected}.")
