"""Predict with an exported model by onnxruntime: neither PyTorch nor fcl-flower.

    python predict_without_torch.py MODEL.onnx INPUT...

MODEL.onnx is of ``fcl export-model --format onnx``. Inputs are pictures, or CSV files
for a model of tables. You see a line an input: its name, its class and the probability.
It needs the packages onnxruntime and numpy, and pillow for pictures.
"""

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime


def main(model: str, *inputs: str) -> None:
    """Print the class of each picture, or of each row of each table."""
    session = onnxruntime.InferenceSession(model)
    about = json.loads(session.get_modelmeta().custom_metadata_map["manifest.json"])
    read = {"images": picture, "tabular": rows}.get(about["input"]["kind"])
    if read is None:
        sys.exit(f"{model} takes {about['input']['kind']}, expected images or tables")
    for path in inputs:
        for name, sample in read(Path(path), about["input"]):
            (logits,) = session.run(["logits"], {"input": sample[None]})
            chances = np.exp(logits[0] - logits[0].max())
            chances /= chances.sum()
            best = int(chances.argmax())
            print(f"{name}\t{about['classes'][best]}\t{chances[best]:.4f}")


def picture(path: Path, given: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield a picture as uint8 at the model's size, shape (height, width, channels).

    It is put upright, with what is transparent on white, as in training.
    """
    from PIL import Image, ImageOps

    _, height, width, _ = given["shape"]
    mode = "L" if given["colour"] == "grey" else "RGB"
    with Image.open(path) as opened:
        image = ImageOps.exif_transpose(opened)
        if image.mode.startswith(("I", "F")):
            sys.exit(f"{path} has more than 8 bits a channel, expected 8")
        if "A" in image.getbands() or "transparency" in image.info:
            white = Image.new("RGBA", image.size, "white")
            image = Image.alpha_composite(white, image.convert("RGBA"))
        image = image.convert(mode).resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    yield str(path), pixels.reshape(height, width, -1)


def rows(path: Path, given: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each row of a table as float32, in the order of the model's columns."""
    with path.open(newline="") as file:
        for line, row in enumerate(csv.DictReader(file), 2):
            values = [float(row[column]) for column in given["columns"]]
            yield f"{path}:{line}", np.array(values, np.float32)


if __name__ == "__main__":
    main(*sys.argv[1:])
