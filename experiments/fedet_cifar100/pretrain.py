"""A small vision transformer for 32x32 images, pre-trained without CIFAR-100.

python experiments/fedet_cifar100/pretrain.py --data-root DIR --output FOLDER

It learns to tell the classes of CIFAR-10 and TinyImageNet apart, from the tokens' mean,
and leaves the encoder in FOLDER for `--set model.encoder=FOLDER`. Half of the patches
are left out of each training step (Liu et al., "PatchDropout", WACV 2023), which halves
its cost as well. It goes on behind the last whole epoch where it was stopped, to the
same result.
"""

import argparse
import math
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from transformers import ViTConfig, ViTModel

from fcl_flower.core.schedule import derive
from fcl_flower.data.images import to_tensor
from fcl_flower.data.registry import load_dataset
from fcl_flower.models.encoder import Hidden, Transformer
from fcl_flower.models.pretrained import EncoderParams

SHAPE = (3, 32, 32)
WIDTH = 192
PADDING = 4
KEPT = 0.5
SMOOTHING = 0.1
DECAY = 0.05
WARM_UP = 0.1
SETTINGS = ("dataset", "epochs", "batch_size", "learning_rate", "seed")
STATE = "training.pt"


def main() -> None:
    """Pre-train the encoder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--dataset", default="cifar10+tinyimagenet32_100c")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=7e-4)
    parser.add_argument("--seed", type=int, default=0)
    torch.set_num_threads(1)
    train(parser.parse_args())


def untrained(seed: int) -> Transformer:
    """Return the encoder with fresh weights: 2.7 million in six blocks."""
    config = ViTConfig(
        image_size=SHAPE[1],
        patch_size=4,
        hidden_size=WIDTH,
        num_hidden_layers=6,
        num_attention_heads=3,
        intermediate_size=4 * WIDTH,
    )
    torch.manual_seed(derive(seed, "model"))
    with tempfile.TemporaryDirectory() as folder:
        ViTModel(config, add_pooling_layer=False).save_pretrained(folder)
        return Transformer(EncoderParams(encoder=folder))


def train(given: argparse.Namespace) -> None:
    """Pre-train, and print loss and test accuracy after each epoch."""
    data = load_dataset(given.dataset, given.data_root)
    x, y = to_tensor(data.train.x, SHAPE), torch.tensor(data.train.y)
    test_x, test_y = to_tensor(data.test.x, SHAPE), torch.tensor(data.test.y)
    body = untrained(given.seed)
    model = nn.ModuleDict({"body": body, "head": nn.Linear(WIDTH, data.num_classes)})
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=given.learning_rate, weight_decay=DECAY, fused=True
    )
    wanted = {name: getattr(given, name) for name in SETTINGS}
    state = given.output / STATE
    done = 0
    if state.exists():
        found = torch.load(state)
        if found["wanted"] != wanted:
            raise SystemExit(f"{state} was made with other settings: {found['wanted']}")
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        done = found["epochs"]
    given.output.mkdir(parents=True, exist_ok=True)
    steps = math.ceil(len(y) / given.batch_size)
    print(f"{len(y)} images, {data.num_classes} classes, {steps} steps an epoch")
    for epoch in range(done, given.epochs):
        started, total = time.process_time(), 0.0
        rng = np.random.default_rng(derive(given.seed, "pretraining", epoch))
        torch.manual_seed(derive(given.seed, "pretraining", epoch))
        model.train()
        for step, chosen in enumerate(_batches(len(y), given.batch_size, rng)):
            rate = _share(epoch * steps + step, given.epochs * steps)
            for group in optimizer.param_groups:
                group["lr"] = given.learning_rate * rate
            with torch.autocast("cpu", torch.bfloat16):
                logits = model["head"](_features(body, _augmented(x[chosen], rng)))
            loss = cross_entropy(logits.float(), y[chosen], label_smoothing=SMOOTHING)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += float(loss.detach()) * len(chosen) / len(y)
        model.eval()
        with torch.autocast("cpu", torch.bfloat16):
            hits = model["head"](body.embed(test_x)).argmax(1) == test_y
        print(
            f"epoch {epoch + 1}: loss {total:.3f}, test accuracy "
            f"{hits.float().mean():.3f}, {time.process_time() - started:.0f} s",
            flush=True,
        )
        body.encoder.save_pretrained(given.output)
        kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        # Written aside first: a run that is stopped while it writes loses nothing.
        torch.save(
            {**kept, "epochs": epoch + 1, "wanted": wanted}, f"{os.fspath(state)}.new"
        )
        os.replace(f"{os.fspath(state)}.new", state)


def _share(step: int, steps: int) -> float:
    """Return the share of the rate: up in a line, and down along a cosine."""
    warm = WARM_UP * steps
    if step < warm:
        return (step + 1) / (warm + 1)
    return (1 + math.cos(math.pi * (step - warm) / (steps - warm))) / 2


def _batches(count: int, size: int, rng: np.random.Generator) -> Iterator[Tensor]:
    order = torch.from_numpy(rng.permutation(count))
    yield from order.split(size)


def _augmented(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Return images moved by up to four pixels, half of them mirrored."""
    count, _, height, width = x.shape
    wide = pad(x, (PADDING,) * 4)
    down, right = torch.from_numpy(rng.integers(0, 2 * PADDING + 1, (2, count, 1)))
    rows = down + torch.arange(height)
    columns = right + torch.arange(width)
    mirrored = torch.from_numpy(rng.random((count, 1)) < 0.5)
    columns = torch.where(mirrored, columns.flip(1), columns)
    images = torch.arange(count)[:, None, None]
    moved = wide.permute(0, 2, 3, 1)[images, rows[:, :, None], columns[:, None]]
    return moved.permute(0, 3, 1, 2)


def _features(body: Transformer, x: Tensor) -> Tensor:
    """Return features of the first token and of half of the patches, drawn anew."""
    values = body.enter(x).values
    count, tokens, width = values.shape
    kept = 1 + round(KEPT * (tokens - 1))
    order = torch.rand(count, tokens)
    order[:, 0] = -1
    chosen = order.argsort(1)[:, :kept, None].expand(-1, -1, width)
    hidden = Hidden(values.gather(1, chosen), torch.ones(count, kept))
    return body.pool(body.run(hidden, 0, len(body.blocks)))


if __name__ == "__main__":
    main()
