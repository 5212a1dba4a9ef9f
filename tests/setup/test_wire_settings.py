"""Which precisions of the wire go with what, and who is told otherwise."""

import pytest

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.setup.resolve import resolve


def resolved(**values):
    return resolve(RunConfig.from_settings(**{"dataset": "digits", **values}))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {"strategy": "fedavg", "wire_dtype": "int8", "secure_aggregation": True},
            "federation.wire_dtype: got 'int8', expected float32, float16 or bfloat16 "
            "with secure aggregation, whose sums are of fixed point",
        ),
        (
            {"strategy": "analytic", "wire_dtype": "int8"},
            "federation.wire_dtype: got 'int8', expected float32, float16 or bfloat16 "
            "for analytic, which sends no models that could be rounded",
        ),
        *(
            (
                {"strategy": "fedavg", "wire_dtype": dtype},
                f"federation.wire_dtype: got '{dtype}', expected int8, or "
                "federation.wire_compression 'zstd', by which fewer levels are fewer "
                "bytes",
            )
            for dtype in ("int4", "ternary")
        ),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(values, expected):
    with pytest.raises(ConfigError) as caught:
        resolved(**values)
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    "values",
    [
        {"strategy": "fedavg", "wire_dtype": "int8"},
        {"strategy": "fedavg", "wire_dtype": "int4", "wire_compression": "zstd"},
        {"strategy": "analytic", "wire_dtype": "float16", "wire_compression": "zstd"},
        {"strategy": "analytic", "local_only": True, "wire_dtype": "int8"},
        {"strategy": "local", "wire_dtype": "int8"},
    ],
    ids=str,
)
def test_all_else_is_accepted(values):
    assert resolved(**values).config.federation.wire_dtype == values["wire_dtype"]
