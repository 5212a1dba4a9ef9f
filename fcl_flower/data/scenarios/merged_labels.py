"""Classes of different data sets that are one class of a single head."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from fcl_flower.core.errors import refuse
from fcl_flower.data.datasets.base import Dataset
from fcl_flower.data.datasets.derived.held_out import PREFIX


def merged_labels(
    text: str, sources: Sequence[Dataset]
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
    # Settings are chosen on held-out samples of the sets that the text names.
    known = {source.name.removeprefix(PREFIX): source for source in sources}
    groups = [
        [name.strip() for name in group.split("=")]
        for group in text.split(",")
        if group.strip()
    ]
    names = [name for group in groups for name in group]
    for name in names:
        if name not in known:
            expected = f"data sets of the run, not {name!r}: {', '.join(known)}"
            raise refuse("merge_labels", text, expected)
    if len(set(names)) < len(names) or any(len(group) == 1 for group in groups):
        expected = "groups of two or more names, each of them once"
        raise refuse("merge_labels", text, expected)
    merged = {}
    for group in groups:
        first: dict[str, tuple[str, int]] = {}
        for name in group:
            class_names = known[name].class_names
            if first and first.keys().isdisjoint(class_names):
                expected = f"a class name that {name!r} has in common with those before"
                raise refuse("merge_labels", text, expected)
            for label, class_name in enumerate(class_names):
                own = (known[name].name, label)
                one = first.setdefault(class_name, own)
                if one != own:
                    merged[own] = one
    return MappingProxyType(merged)
