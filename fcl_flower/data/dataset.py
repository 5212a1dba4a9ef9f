"""A data set of either kind; whoever needs to know asks with ``isinstance``."""

from typing import TypeAlias

from fcl_flower.data.imageset import ImageSet
from fcl_flower.data.textset import TextSet

DataSet: TypeAlias = ImageSet | TextSet
