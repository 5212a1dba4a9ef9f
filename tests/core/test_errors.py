from fcl_flower.core.errors import ConfigError, config_error, unknown_name


def test_a_refusal_names_key_value_and_what_was_expected():
    error = config_error("scenario.clients", -1, "at least 1")

    assert isinstance(error, ConfigError)
    assert str(error) == "scenario.clients: got -1, expected at least 1"


def test_an_unknown_name_is_answered_by_the_nearest_known():
    error = unknown_name("strategy", "fedwiet", ["fedavg", "fedweit"])

    assert str(error) == (
        "strategy: got 'fedwiet', expected one of fedweit, fedavg; "
        "did you mean 'fedweit'?"
    )


def test_at_most_five_names_are_listed_the_nearest_first():
    names = [*"abcdefgh", "lenet", "lennet", "resnet18"]
    assert str(unknown_name("model", "lenett", names)) == (
        "model: got 'lenett', expected one of lenet, lennet, resnet18, e, a or one of "
        "6 others; did you mean 'lenet'?"
    )


def test_no_name_is_proposed_that_is_not_near():
    assert "did you mean" not in str(unknown_name("model", "zzz", ["lenet", "mlp"]))
    assert "as there are none" in str(unknown_name("strategy.x", "x", []))
