"""The page of one run must show what the files of the run say."""

import base64
import gzip
import json
import math
import re

import numpy as np
import pytest
from pages import (
    figures,
    headings,
    hints,
    lines_of,
    marks_of,
    numbers_of,
    parsed,
    pictures,
    prose,
    require_layout,
    table_of,
    words,
)
from plotly.offline import get_plotlyjs
from run_folders import edit, make_run, nulled, summary_of, synthetic_scenario, write

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.results.report import write_report


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


@pytest.mark.parametrize(
    "size",
    [
        {},
        {"clients": 1, "tasks": 1},
        {"clients": 1, "tasks": 4},
        {"clients": 4, "tasks": 1, "rounds_per_task": 1},
        {"clients": 5, "tasks": 10, "rounds_per_task": 20},
        {"clients": 22, "tasks": 6},
        {"clients": 2, "tasks": 24, "rounds_per_task": 1},
        {"local_only": True, "attention": False},
        {"gone": (1,)},
        {"gone": (0, 1, 2)},
        {"clients": 1, "tasks": 2, "overlap": True},
        {"clients": 2, "tasks": 2, "overlap": True},
        {"clients": 5, "tasks": 10, "overlap": True},
        {"clients": 22, "tasks": 6, "overlap": True},
    ],
)
def test_a_page_is_well_formed_whatever_the_size_of_the_run(tmp_path, size):
    path = write_report(make_run(tmp_path / "run", **size))
    assert path == tmp_path / "run" / "report.html"
    page = parsed(path)
    assert len(headings(page)) >= 3
    require_layout(page)


def test_a_page_needs_nothing_but_itself(run):
    page = parsed(write_report(run))
    assert not {"link", "img", "iframe"} & {e.tag for e in page.iter()}
    assert not any({"src", "href"} & set(e.keys()) for e in page.iter())
    style = "".join(e.text for e in page.iter("style"))
    assert not re.search(r"url\(|@import|//", style)
    policy = next(e for e in page.iter("meta") if e.get("http-equiv"))
    rules = dict(rule.split(None, 1) for rule in policy.get("content").split(";"))
    assert rules == {
        **dict.fromkeys(("default-src", "base-uri", "form-action"), "'none'"),
        **dict.fromkeys(("script-src", "style-src"), "'unsafe-inline'"),
        "img-src": "data: blob:",
    }


def test_a_page_holds_the_library_that_draws_its_pictures(run):
    packed = parsed(write_report(run)).find(".//script[@id='library']").text
    found = base64.b64decode(packed)
    assert gzip.decompress(found).decode() == get_plotlyjs()
    assert found[4:8] == bytes(4)  # the time: the same page whenever it is made


def test_a_page_without_pictures_has_no_library(tmp_path):
    run = make_run(tmp_path / "run", clients=1, tasks=1, attention=False)
    (run / "rounds.jsonl").write_text("", encoding="utf-8")
    path = write_report(run)
    assert not figures(parsed(path))
    assert path.stat().st_size < 20_000


def test_the_same_folder_gives_the_same_bytes(run):
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first


def test_the_headline_shows_the_summary(run):
    edit(
        run,
        "summary.json",
        average_accuracy=0.51249,
        forgetting=0.0213,
        backward_transfer=-0.0104,
        learning_accuracy=None,
        bytes_up=12_345_678,
        nominal_bytes_up=4_000,
        seconds=3725,
    )
    page = parsed(write_report(run))
    told = [words(tile) for tile in page.iter("div") if tile.get("class") == "tile"]
    shown = " | ".join(told)
    assert "Average accuracy0.512" in shown
    assert "Catastrophic forgetting0.021" in shown
    assert "Backward transfer\N{MINUS SIGN}0.010" in shown
    assert "Learning accuracy\N{EN DASH}" in shown
    assert "Sent up12.3 MB 4.00 kB nominal: 4 bytes per non-zero parameter" in shown
    assert "Time1 h 02 min" in shown
    exact = [e.get("title") for e in page.iter("span")]
    assert "12,345,678 bytes" in exact
    assert "4,000 bytes" in exact


@pytest.mark.parametrize(
    ("before", "shown"), [(0.4321, True), (0.51249, False), (None, False)]
)
def test_an_accuracy_before_the_aggregation_is_shown_if_it_is_another(
    run, before, shown
):
    found = {"average_accuracy": before}
    edit(run, "summary.json", average_accuracy=0.51249, before_aggregation=found)
    page = parsed(write_report(run))
    told = [words(tile) for tile in page.iter("div") if tile.get("class") == "tile"]
    assert any(tile.startswith("Before aggregation0.432") for tile in told) is shown
    assert any("Before" in tile for tile in told) is shown


def test_text_from_the_files_cannot_become_markup(run):
    evil = "<script>alert('1')</script> & \"quotes\""
    edit(run, "summary.json", label=evil, command=evil, params={evil: evil})
    scenario = synthetic_scenario(3, 3)
    scenario["clients"][0][0] |= {"name": evil, "group": evil, "class_names": [evil]}
    write(run / "scenario.json", scenario)
    path = write_report(run)
    page = parsed(path)
    assert "<script>alert" not in path.read_text(encoding="utf-8")
    assert words(page.find("body/header/h1")) == evil
    assert sum(evil in words(cell) for cell in page.iter("td")) >= 3


def test_names_cannot_become_markup_of_a_picture(run):
    evil = "</script><b>&#60;\N{LINE SEPARATOR}%{x}"
    entries = json.loads((run / "attention.json").read_text(encoding="utf-8"))
    entries[0]["task_name"] = evil
    write(run / "attention.json", entries)
    path = write_report(run)
    text = path.read_text(encoding="utf-8")
    assert text.count("</script>") == 3
    assert "\N{LINE SEPARATOR}" not in text
    name = "Weight of each foreign adapter for each client and task"
    picture = pictures(parsed(path))[name]
    assert any(evil in told for told in hints(picture))
    assert "<b>" not in json.dumps(picture)


def test_lines_go_through_the_accuracies(run):
    matrix = summary_of(run)["accuracy_matrix"]
    page = parsed(write_report(run))
    picture = pictures(page)["Accuracy of every task over time"]
    dots = hints(picture)
    assert len(dots) == 6
    for learned in range(3):
        for task in range(learned + 1):
            told = f"task {task}, after task {learned}: {matrix[learned][task]:.3f}"
            assert dots[told][1] == (learned, matrix[learned][task])
    names = [trace["name"] for trace in picture["data"]]
    assert names == [f"task {i}: {matrix[2][i]:.3f}" for i in range(3)]
    table = [
        [f"{x:.3f}" if x is not None else "\N{EN DASH}" for x in row] for row in matrix
    ]
    assert numbers_of(page, "Accuracy of every task over time") == [
        ["task", "task 0", "task 1", "task 2"],
        *([str(t), *row] for t, row in enumerate(table)),
    ]


def test_the_matrix_shows_every_number_and_leaves_the_rest_empty(run):
    matrix = summary_of(run)["accuracy_matrix"]
    page = parsed(write_report(run))
    name = "Accuracy on every task after every task, mean over 3 clients"
    cells = hints(pictures(page)[name])
    assert {told: place for told, (_, place) in cells.items()} == {
        f"after task {t}, on task {i}: {matrix[t][i]:.3f}": (t, i, matrix[t][i])
        for t in range(3)
        for i in range(t + 1)
    }
    (trace,) = pictures(page)[name]["data"]
    assert trace["z"] == matrix
    assert trace["texttemplate"] == "%{z:.3f}"
    assert numbers_of(page, name)[2] == [
        "1",
        *(f"{value:.3f}" for value in matrix[1][:2]),
        "",
    ]


def test_colours_go_from_just_below_the_lowest_to_just_above_the_highest(run):
    page = parsed(write_report(run))
    name = "Accuracy on every task after every task, mean over 3 clients"
    scale = pictures(page)[name]["layout"]["coloraxis"]
    found = [x for row in summary_of(run)["accuracy_matrix"] for x in row if x]
    assert scale["cmin"] == math.floor(min(found) * 20) / 20
    assert scale["cmax"] == math.ceil(max(found) * 20) / 20


def test_each_client_has_a_matrix_and_the_best_and_worst_are_named(run):
    final = np.array(summary_of(run)["client_accuracy"], float)[:, -1].mean(axis=1)
    page = parsed(write_report(run))
    told = f"Client {final.argmax()} ends best ({final.max():.3f}), client "
    assert any(heading.startswith(told) for heading in headings(page))
    for client in range(3):
        assert len(hints(pictures(page)[f"Accuracies of client {client}"])) == 6


def test_a_client_that_vanished_has_no_final_accuracy(tmp_path):
    page = parsed(write_report(make_run(tmp_path / "run", gone=(1,))))
    captions = [words(caption) for caption in page.iter("figcaption")]
    assert captions[1] == "client 1: ends at \N{EN DASH}"
    assert len(hints(pictures(page)["Accuracies of client 1"])) == 3


def test_the_table_of_final_accuracies_keeps_the_last_round_of_each_task(run):
    rows = (run / "accuracy.csv").read_text(encoding="utf-8").splitlines()
    head, body = rows[0], rows[1:]
    again = "\n".join([head, '13,2,0,0,"fish, again",0.123', *body])
    (run / "accuracy.csv").write_text(again, encoding="utf-8")
    finals = table_of(parsed(write_report(run)), "finals")
    assert ["0", "0", "fish, again", "13", "0.123"] in finals
    assert len(finals) == 9


def test_bars_of_forgetting_are_as_high_as_what_was_lost(tmp_path):
    run = make_run(tmp_path / "run", tasks=4, lost=-0.03)
    accuracy = np.array(summary_of(run)["client_accuracy"], float)
    edit(run, "summary.json", client_accuracy=nulled((1 - accuracy).tolist()))
    # Now client by client some tasks are forgotten; one is made to improve.
    accuracy = 1 - accuracy
    accuracy[:, 3, 2] = accuracy[:, 2, 2] + 0.05
    edit(run, "summary.json", client_accuracy=nulled(accuracy.tolist()))
    picture = pictures(parsed(write_report(run)))["Forgetting of every task"]
    bars = [place for trace, place in hints(picture).values() if trace["type"] == "bar"]
    for task, (place, height) in enumerate(bars):
        forgotten = [
            max(a[t][task] for t in range(task, 3)) - a[3][task] for a in accuracy
        ]
        mean = sum(forgotten) / len(forgotten)
        assert (place, height) == (task, pytest.approx(mean))
    assert len(bars) == 3
    assert mean == pytest.approx(-0.05)
    dots = [place for trace, place in hints(picture).values() if trace["type"] != "bar"]
    assert len(dots) == 9


def test_without_any_forgetting_there_is_no_picture_of_it(run):
    same = [[0.5, None, None], [0.5, 0.25, None], [0.5, 0.25, 0.75]]
    edit(run, "summary.json", client_accuracy=[same] * 3, accuracy_matrix=same)
    page = parsed(write_report(run))
    assert "Nothing was forgotten" in headings(page)
    assert "No task lost accuracy while later ones were learned" in headings(page)
    assert "Forgetting of every task" not in pictures(page)


def test_columns_are_as_high_as_the_bytes_they_stand_for(run):
    lines = (run / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    rounds = [json.loads(line) for line in lines]
    shown = pictures(parsed(write_report(run)))
    highest = 0
    for way in ("up", "down"):
        picture = shown[f"Bytes {way} in each round"]
        assert picture["layout"]["barmode"] == "stack"
        found = {trace["name"]: trace for trace in picture["data"]}
        assert [*found] == ["base", "adapters", "masks", "meta"]
        for kind, trace in found.items():
            assert trace["x"] == [*range(1, 13)]
            assert trace["y"] == [one[f"bytes_{way}"].get(kind, 0) for one in rounds]
        highest = max(highest, *(sum(one[f"bytes_{way}"].values()) for one in rounds))
    for way in ("up", "down"):
        axis = shown[f"Bytes {way} in each round"]["layout"]["yaxis"]
        assert axis["range"] == [0, pytest.approx(1.05 * highest)]


def test_bytes_of_a_round_are_told_and_a_new_kind_has_a_colour(run):
    path = run / "rounds.jsonl"
    first, *rest = path.read_text(encoding="utf-8").splitlines()
    sizes = {"base": 1_500_000, "prompts": 2_000, "masks": 0}
    changed = json.dumps(json.loads(first) | {"bytes_up": sizes})
    path.write_text("\n".join([changed, *rest, ""]), encoding="utf-8")
    page = parsed(write_report(run))
    picture = pictures(page)["Bytes up in each round"]
    assert {"round 1: base 1.50 MB", "round 1: prompts 2.00 kB"} <= hints(
        picture
    ).keys()
    kinds = [trace["name"] for trace in picture["data"]]
    assert kinds == ["base", "adapters", "masks", "meta", "prompts"]
    colours = {trace["marker"]["color"] for trace in picture["data"]}
    assert len(colours) == 5


def test_a_local_only_run_is_said_to_have_sent_nothing(tmp_path):
    page = parsed(write_report(make_run(tmp_path / "run", local_only=True)))
    assert "Nothing travelled" in headings(page)
    assert "local-only: no communication" in words(page.find("body/header/p"))


def test_rounds_with_a_missing_reply_are_marked(run):
    path = run / "rounds.jsonl"
    rounds = [json.loads(s) for s in path.read_text(encoding="utf-8").splitlines()]
    for r in (2, 7):
        rounds[r - 1] |= {"failed": [1], "valid_accuracy": None}
    path.write_text("\n".join(map(json.dumps, rounds)), encoding="utf-8")
    page = parsed(write_report(run))
    for name in ("Validation accuracy", "Training loss"):
        marks = {
            told
            for told, (trace, _) in hints(pictures(page)[name]).items()
            if trace.get("name") == "a reply is missing"
        }
        assert marks == {f"round {r}: a reply is missing" for r in (2, 7)}
    assert any(
        "in 2 rounds a reply is missing" in heading for heading in headings(page)
    )
    _, curve, _ = lines_of(pictures(page)["Validation accuracy"])["validation accuracy"]
    assert [i for i, value in enumerate(curve, 1) if value is None] == [2, 7]


def test_bands_are_the_tasks_and_bear_their_number_alone_where_they_are_many(tmp_path):
    run = make_run(tmp_path / "few", clients=2, tasks=3, rounds_per_task=2)
    layout = pictures(parsed(write_report(run)))["Training loss"]["layout"]
    places = [(one["x"], one["text"]) for one in layout["annotations"]]
    assert places == [(1.5, "task 0"), (3.5, "task 1"), (5.5, "task 2")]
    ((left, right),) = [(one["x0"], one["x1"]) for one in layout["shapes"]]
    assert (left, right) == (2.5, 4.5)
    run = make_run(tmp_path / "many", clients=2, tasks=30, rounds_per_task=1)
    layout = pictures(parsed(write_report(run)))["Training loss"]["layout"]
    assert [one["text"] for one in layout["annotations"]] == [*map(str, range(30))]


def test_attention_shows_every_weight_and_marks_the_same_group(run):
    entries = json.loads((run / "attention.json").read_text(encoding="utf-8"))
    foreign = [f for entry in entries for f in entry["foreign"]]
    same = [f["weight"] for f in foreign if f["same_group"]]
    other = [f["weight"] for f in foreign if not f["same_group"]]
    page = parsed(write_report(run))
    picture = pictures(page)["Weight of each foreign adapter for each client and task"]
    assert len(hints(picture)) == len(foreign) == 12
    assert len(marks_of(picture)) == len(same) == 4
    means = f"{sum(same) / len(same):.2f} (mean of 4) against "
    assert any(means in heading for heading in headings(page))
    assert sum(same) / len(same) > sum(other) / len(other)
    assert any(
        "get more weight than the others" in heading for heading in headings(page)
    )


def test_too_many_adapters_are_summed_up_per_client(tmp_path):
    run = make_run(tmp_path / "run", clients=12, tasks=8)
    entries = json.loads((run / "attention.json").read_text(encoding="utf-8"))
    weights = [
        f["weight"]
        for e in entries
        if e["client"] == 2
        for f in e["foreign"]
        if f["client"] == 5
    ]
    page = parsed(write_report(run))
    described = (
        "Mean weight that each client gives to the adapters of each other client"
    )
    told = hints(pictures(page)[described])
    assert len(told) == 12 * 11
    mean = sum(weights) / len(weights)
    assert f"client 2 uses client 5: {mean:.3f}, mean of 7" in told
    assert not marks_of(pictures(page)[described])


def test_attention_without_groups_makes_no_claim_about_groups(run):
    entries = json.loads((run / "attention.json").read_text(encoding="utf-8"))
    for entry in entries:
        for foreign in entry["foreign"]:
            foreign["same_group"] = None
    write(run / "attention.json", entries)
    page = parsed(write_report(run))
    assert any(
        h.startswith("A foreign adapter has a weight of") for h in headings(page)
    )
    assert "class group get" not in prose(page)


def test_a_strategy_without_foreign_adapters_has_no_such_section(tmp_path):
    page = parsed(write_report(make_run(tmp_path / "run", attention=False)))
    assert not any("dapter" in heading for heading in headings(page))


def test_the_scenario_lists_classes_and_counts(run):
    page = parsed(write_report(run))
    table = next(t for t in page.iter("table") if t.get("class") == "scenario")
    assert len(table.findall("tbody/tr")) == 3
    cell = words(table.find("tbody/tr/td[2]"))
    assert "fish_0, fish_1, fish_2, fish_3, fish_4" in cell
    assert "350 / 50 / 100" in cell
    assert "3 clients with 3 tasks each, 25 different classes" in headings(page)
    assert "3,150 training, 450 validation and 900 test examples" in words(page)


def test_settings_are_flat_and_the_command_is_shown(run):
    page = parsed(write_report(run))
    rows = dict(table_of(page, "settings"))
    assert rows["strategy.training.epochs"] == "1"
    assert rows["strategy.training.lr"] == "none"
    assert rows["strategy.local_only"] == "false"
    assert words(page.find(".//pre")) == "fcl run studies/overlapped.toml --seed 1"


def test_settings_have_the_names_of_the_configuration(run):
    training = {"epochs": 2, "lr_patience": 3, "client_fraction": 0.5, "head": "multi"}
    edit(run, "summary.json", training=training)
    rows = dict(table_of(parsed(write_report(run)), "settings"))
    wanted = {
        "strategy.name": "fedweit",
        "strategy.kappa": "0.3",
        "scenario.clients": "3",
        "scenario.tasks": "3",
        "data.datasets": "cifar100",
        "model.name": "lenet",
        "model.head": "multi",
        "training.epochs": "2",
        "training.lr_patience": "3",
        "federation.rounds_per_task": "4",
        "federation.client_fraction": "0.5",
        "run.seed": "1",
    }
    assert wanted.items() <= rows.items()
    assert wanted.keys() - {"strategy.kappa"} <= RunConfig().flat().keys()


def test_each_remark_is_a_row_of_the_settings(run):
    assert "remarks" not in summary_of(run)  # a folder of before there were remarks
    write_report(run)

    edit(run, "summary.json", remarks={"word vectors": "trained here on 11,314 texts"})
    page = parsed(write_report(run))

    rows = dict(table_of(page, "settings"))
    assert rows["word vectors"] == "trained here on 11,314 texts"


def test_date_and_versions_are_rows_of_the_settings(run):
    assert "environment" not in summary_of(run)  # a folder of before it was recorded
    write_report(run)

    versions = {"fcl-flower": "0.1.0", "torch": None}
    found = {"date": "2026-01-02T03:04:05+00:00", "versions": versions}
    edit(run, "summary.json", environment=found)
    rows = dict(table_of(parsed(write_report(run)), "settings"))
    assert rows["date"] == "2026-01-02T03:04:05+00:00"
    assert rows["version of fcl-flower"] == "0.1.0"
    assert rows["version of torch"] == "none"


def test_date_versions_commit_and_machine_are_told_at_the_foot(run):
    assert "Run:" not in words(parsed(write_report(run)).find("body/footer"))
    found = {
        "date": "2026-01-02T03:04:05+00:00",
        "versions": {"fcl-flower": "0.1.0", "python": "3.11.7"},
        "commit": "1234567890ab-dirty",
        "machine": "Linux x86_64, 2 cores",
    }
    edit(run, "summary.json", environment=found)
    page = parsed(write_report(run))
    assert (
        "Run: 2026-01-02T03:04:05+00:00, fcl-flower 0.1.0, python 3.11.7, commit "
        "1234567890ab-dirty, Linux x86_64, 2 cores. Made from summary.json"
    ) in words(page.find("body/footer"))
    rows = dict(table_of(page, "settings"))
    assert rows["commit"] == found["commit"]
    assert rows["machine"] == found["machine"]


def test_a_mean_over_one_client_is_not_called_one(tmp_path):
    for clients, told_so in ((1, "of the only client"), (4, "mean over 4 clients")):
        run = make_run(tmp_path / str(clients), clients=clients, attention=False)
        page = prose(parsed(write_report(run)))
        assert page.count(told_so) >= 4
        assert ("mean over" in page) is (clients > 1)


@pytest.mark.parametrize("name", ["accuracy.csv", "rounds.jsonl", "scenario.json"])
def test_a_missing_file_is_named(run, name):
    (run / name).unlink()
    with pytest.raises(ConfigError, match=re.escape(str(run / name))):
        write_report(run)


def test_a_folder_of_no_run_is_named(run):
    (run / "summary.json").unlink()
    expected = f"got '{run}', expected that of a run, with summary.json"
    with pytest.raises(ConfigError, match=re.escape(expected)):
        write_report(run)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("summary.json", "{", "summary.json: got Expecting property name"),
        ("summary.json", "[]", "summary.json"),
        ("rounds.jsonl", '{"round": 1', "rounds.jsonl: got Expecting ',' delimiter"),
        ("rounds.jsonl", '{"round": "one"}', "0.round: got 'one'"),
        ("accuracy.csv", "round,client\n1,0\n", "0.task_learned: got nothing"),
        ("scenario.json", '{"name": 3}', "scenario.json: name: got 3"),
        ("attention.json", '{"client": 0}', "attention.json"),
        ("overlap.json", "[{]", "overlap.json: got Expecting property name"),
        ("overlap.json", '[{"client": 0}]', "overlap.json: 0.task: got nothing"),
        ("summary.json", b"\xff\xfe", "summary.json: got 'utf-8' codec"),
    ],
)
def test_a_broken_file_is_named(run, name, content, message):
    content = content if isinstance(content, bytes) else content.encode()
    (run / name).write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(message)):
        write_report(run)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bytes_up": -1}, "bytes_up: got -1"),
        (
            {"clients": 2},
            "client_accuracy: got .* expected lists of the shape (2, 3, 3)",
        ),
        ({"accuracy_matrix": [[0.5], [0.5, 0.5]]}, "accuracy_matrix: got"),
        ({"accuracy_matrix": [[0.5] * 3] * 3}, "expected null above the diagonal"),
        ({"accuracy_matrix": [[51.2]]}, "accuracy_matrix.0.0: got 51.2"),
    ],
)
def test_a_wrong_figure_is_named(run, changes, message):
    edit(run, "summary.json", **changes)
    pattern = re.escape(message).replace(r"\.\*", ".*")
    with pytest.raises(ConfigError, match=pattern):
        write_report(run)


def test_rounds_out_of_order_are_refused(run):
    path = run / "rounds.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([lines[0], lines[0], *lines[1:]]), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"rounds.jsonl: round: got \[1, 1, 2"):
        write_report(run)


def test_of_many_clients_the_best_and_the_worst_are_shown(tmp_path):
    run = make_run(tmp_path / "run", clients=70, tasks=2, attention=False)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    for absent in (7, 8):
        summary["client_accuracy"][absent] = [[None, None], [None, None]]
    write(run / "summary.json", summary)
    final = {
        client: np.mean(matrix[-1])
        for client, matrix in enumerate(summary["client_accuracy"])
        if client not in (7, 8)
    }
    ranked = sorted(final, key=lambda client: -final[client])

    page = parsed(write_report(run))

    told = [*hints(pictures(page)["Final accuracy of every client on every task"])]
    shown = [int(hint.split(",")[0].removeprefix("client ")) for hint in told[::2]]
    assert shown == ranked[:32] + ranked[-32:]
    first = summary["client_accuracy"][ranked[0]][-1][0]
    assert told[0].endswith(f"task 0: {first:.3f}")
    assert "Shown are the best 32 and the worst 32 of 70 clients." in prose(page)
