"""Files of images and texts that a loaded model is asked about."""

import json

import numpy as np
import pytest

import fcl_flower as fcl
from fcl_flower.core.errors import ConfigError
from fcl_flower.simulation.in_process import InProcessTransport, run_simulated

pytestmark = [pytest.mark.run, pytest.mark.usefixtures("one_thread")]


def test_pictures_are_predicted_as_their_pixels(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="of the extra images")
    given = {"clients": 2, "tasks": 2, "rounds": 1, "seed": 1, "progress": False}
    fcl.simulate("fedavg", dataset="digits", output=tmp_path / "run", **given)
    model = fcl.load(tmp_path / "run", client=1)
    pixels = model.run.scenario.sources["digits"].test.x[:5]
    folder = tmp_path / "pictures" / "below"
    folder.mkdir(parents=True)
    for number, one in enumerate(pixels):
        image.fromarray(one).save(folder / f"{number}.png")

    read = model.read(tmp_path / "pictures", 0)
    assert read.names == tuple(str(folder / f"{n}.png") for n in range(5))
    found = model.predict(tmp_path / "pictures", 0)
    assert found == model.predict(pixels, 0)
    (folder / "Thumbs.db").write_text("of a window")
    (tmp_path / "linked").symlink_to(tmp_path / "pictures")
    (folder / "up").symlink_to(tmp_path / "pictures")  # leads nowhere new
    assert model.predict(tmp_path / "linked", 0) == found
    (folder / "notes.txt").write_text("no image")
    with pytest.raises(ConfigError, match=r"notes\.txt is no image"):
        model.predict(tmp_path / "pictures", 0)
    # 16 bits are what they were, but for the unit.
    deep = np.uint16(pixels) * 257
    assert [one.name for one in model.predict(deep, 0)] == [one.name for one in found]


GOOD, BAD, OTHER = ["good", "fine"], ["bad", "poor"], ["the", "film", "was"]


def test_words_that_no_task_had_come_from_the_clients_vectors(tmp_path):
    rng = np.random.default_rng(0)
    vectors = tmp_path / "vectors.txt"
    lines = []
    for words, mean in ((GOOD, 1), (BAD, -1), (OTHER, 0), (["superb"], 1.2)):
        for word in words:
            numbers = mean + rng.normal(0, 0.1, 8)
            lines.append(f"{word} {' '.join(f'{n:.3f}' for n in numbers)}")
    vectors.write_text("\n".join(lines) + "\n")
    places = []
    for client in range(2):
        folder = tmp_path / f"data-{client}" / "task-01"
        folder.mkdir(parents=True)
        rows = [
            {"text": f"the film was {words[n % 2]}", "label": label}
            for n in range(20)
            for words, label in ((GOOD, "like"), (BAD, "dislike"))
        ]
        text = "\n".join(map(json.dumps, rows))
        (folder / "train.jsonl").write_text(text)
        state = tmp_path / f"state-{client}" / "memory"
        places.append({"data-path": str(folder.parent), "state-path": str(state)})
    config = fcl.RunConfig.from_settings(
        **{"strategy": "fedavg", "scenario": "local-data", "model": "kim-cnn"},
        **{"clients": 2, "tasks": 1, "rounds": 3, "classes_per_task": 2},
        **{"num_features": 8, "word_vectors": str(vectors)},
        output=str(tmp_path / "run"),
    )
    run_simulated(InProcessTransport(range(100, 102), config, places), config)

    model = fcl.load(tmp_path / "state-0")
    before = model.predict("the film was good")
    assert [one.name for one in model.predict("superb")] == ["like"]
    assert model.predict("the film was good") == before
    assert model.classes == (("dislike", "like"),)
    vectors.unlink()
    again = fcl.load(tmp_path / "state-0")
    assert again.predict("the film was good") == before  # the version has its words
