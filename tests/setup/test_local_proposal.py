import numpy as np
import pytest
from PIL import Image

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.setup.resolve import propose, resolve, with_local_data


def client(folder, *tasks):
    """Write the training samples of some tasks, each by a function of a path."""
    for number, write in enumerate(tasks, 1):
        task = folder / f"task-{number:02}"
        task.mkdir(parents=True)
        write(task)
    return folder


def table(*classes):
    lines = ["x,label,y,z", *(f"1,{name},2,3" for name in classes for _ in range(3))]
    return lambda task: (task / "train.csv").write_text("\n".join(lines) + "\n")


def arrays(x):
    y = np.arange(len(x)) % 2
    return lambda task: np.savez(task / "train.npz", x=x, y=y)


def images(task):
    for name in ("cat", "dog", "emu"):
        (task / "train" / name).mkdir(parents=True)
        picture = Image.fromarray(np.zeros((5, 5, 3), np.uint8))
        picture.save(task / "train" / name / "1.png")


def texts_as_table(task):
    (task / "train.csv").write_text("text,label\na b,x\nc d,y\n")


def texts_as_lines(task):
    lines = [f'{{"text": "a b", "label": "{name}"}}\n' for name in "xyz"]
    (task / "train.jsonl").write_text("".join(lines))


@pytest.mark.parametrize(
    ("write", "model", "classes", "columns"),
    [
        (table("a", "b", "c"), "mlp", 3, 3),
        (arrays(np.zeros((4, 7))), "mlp", 2, 7),
        (arrays(np.zeros((4, 6, 6), np.uint8)), "lenet", 2, None),
        (arrays(np.zeros((4, 6, 6, 3))), "lenet", 2, None),
        (arrays(np.full((4, 9, 128), 3.5)), "har-cnn", 2, None),
        (images, "lenet", 3, None),
        (texts_as_table, "transformer", 2, None),
        (texts_as_lines, "transformer", 3, None),
    ],
)
def test_the_settings_are_read_off_the_files(tmp_path, write, model, classes, columns):
    expected = {
        "scenario.tasks": 1,
        "model.name": model,
        "scenario.classes_per_task": classes,
    }
    if columns:
        expected["model.num_features"] = columns
    if columns == 3:  # the table, whose columns have names
        expected["data.columns"] = "x,y,z"
    assert propose([client(tmp_path / "a", write)], RunConfig()) == expected


@pytest.mark.parametrize(
    ("strategy", "write", "model"),
    [
        ("analytic", texts_as_lines, "frozen-transformer"),
        ("fedet", texts_as_lines, "enhanced-transformer"),
        ("analytic", images, "efficientnet-lite0"),
        ("analytic", table("a", "b"), "mlp"),
        ("fedweit", texts_as_lines, "transformer"),
    ],
)
def test_a_strategy_that_is_for_one_network_gets_it(tmp_path, strategy, write, model):
    config = RunConfig.from_settings(strategy=strategy)
    found = propose([client(tmp_path / "a", write)], config)
    assert found["model.name"] == model


def test_all_clients_have_the_tasks_and_the_classes_fit_all(tmp_path):
    first = client(tmp_path / "a", table("a", "b"), table("c", "d", "e"), table("f"))
    second = client(tmp_path / "b", table("a", "b", "c", "d"), table("g"))
    found = propose([first, second], RunConfig())
    assert found["scenario.tasks"] == 2
    assert found["scenario.classes_per_task"] == 4


def test_classes_that_are_merged_count_once(tmp_path):
    folder = client(tmp_path / "a", table("a", "A", "b", "B ", "c"))
    for rule, classes in (("refuse", 5), ("keep", 5), ("merge", 3)):
        config = RunConfig.from_settings(labels=rule)
        assert propose([folder], config)["scenario.classes_per_task"] == classes


def test_columns_that_cannot_be_listed_are_left_out(tmp_path):
    def write(task):
        (task / "train.csv").write_text('"a,b",c,label\n1,2,x\n3,4,y\n')

    found = propose([client(tmp_path / "a", write)], RunConfig())
    assert found["model.num_features"] == 2
    assert "data.columns" not in found


def test_the_columns_say_how_many_numbers_a_sample_has():
    config = RunConfig.from_settings(
        scenario="local-data", model="mlp", columns="b, a", classes_per_task=2
    )
    spec = resolve(config, 2)
    assert spec.config.model.num_features == 2
    assert spec.config.data.column_names == ("a", "b")


def test_a_task_of_one_class_has_a_head_of_two(tmp_path):
    found = propose([client(tmp_path / "a", table("a"))], RunConfig())
    assert found["scenario.classes_per_task"] == 2


def test_what_the_user_says_stays(tmp_path):
    folder = client(tmp_path / "a", images)
    given = RunConfig.from_settings(model="resnet18", classes_per_task=7, clients=2)
    config = with_local_data(given, [folder, folder])
    assert config.model.name == "resnet18"
    assert config.scenario.classes_per_task == 7
    assert (config.scenario.name, config.scenario.clients) == ("local-data", 2)
    assert config.scenario.tasks == 1


@pytest.mark.parametrize("tasks", [2, 4])
def test_the_user_may_want_fewer_tasks_than_all_folders_have(tmp_path, tasks):
    long = client(tmp_path / "a", *[table("a", "b")] * 6)
    short = client(tmp_path / "b", *[table("a", "b")] * 5)
    assert with_local_data(RunConfig(), [long, short]).scenario.tasks == 5
    given = RunConfig.from_settings(tasks=tasks)
    assert with_local_data(given, [long, short]).scenario.tasks == tasks


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"clients": 9}, "scenario.clients: got 9, expected 2 with 2 folders"),
        ({"scenario": "text"}, "scenario.name: got 'text', expected 'local-data' w"),
    ],
)
def test_what_the_user_says_must_go_with_the_folders(tmp_path, settings, expected):
    folder = client(tmp_path / "a", images)
    with pytest.raises(ConfigError, match=expected):
        with_local_data(RunConfig.from_settings(**settings), [folder, folder])


def test_a_single_head_is_told_its_classes_by_the_user(tmp_path):
    given = RunConfig.from_settings(head="single", class_names="a,b")
    folder = client(tmp_path / "a", table("a", "b"))
    config = with_local_data(given, [folder])
    assert config.scenario.classes_per_task == 0
    assert config.data.classes == ("a", "b")


def refusal(*folders, **settings):
    with pytest.raises(ConfigError) as problem:
        propose(folders, RunConfig.from_settings(**settings))
    (line,) = str(problem.value).splitlines()
    return line


def test_a_folder_without_tasks_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    folder = tmp_path / "empty"
    assert (
        refusal(folder) == f"data-path: got {str(folder)!r}, expected at least one task"
    )
    good = client(tmp_path / "good", table("a"))
    assert refusal(good, folder).startswith(f"data-path: got {str(folder)!r}")
    assert "nowhere" in refusal(tmp_path / "nowhere")


def test_series_that_no_network_takes_ask_for_one(tmp_path):
    folder = client(tmp_path / "a", arrays(np.full((4, 3, 10), 2.5)))
    assert refusal(folder) == (
        "model.name: got '', expected a network of your own for series of shape "
        "(3, 10), since no built-in one takes them"
    )
    assert refusal(folder, model="har-cnn").endswith(
        "samples have shape (3, 10), expected (9, 128), which the model takes"
    )


def test_a_model_that_is_unknown_is_refused(tmp_path):
    folder = client(tmp_path / "a", images)
    assert refusal(folder, model="lenet5").endswith("did you mean 'lenet'?")
