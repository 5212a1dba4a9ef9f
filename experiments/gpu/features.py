"""Images a second through a frozen ViT-S/14 of full size, of 224 pixels a side.

python features.py DEVICE IMAGES

The weights are random: speed does not depend on them. Prints JSON.
"""

import json
import sys
import tempfile
import time

import torch
from transformers import Dinov2Config, Dinov2Model

from fcl_flower.models.build import create_model
from fcl_flower.models.registry import FrozenParams

BATCH = 32


def main() -> None:
    """Compute features of noise, once to warm up and once on the clock."""
    device, images = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    config = Dinov2Config(
        hidden_size=384, num_attention_heads=6, image_size=224, patch_size=14
    )
    with tempfile.TemporaryDirectory() as folder:
        Dinov2Model(config).save_pretrained(folder)
        model = create_model(
            "frozen-vit",
            tasks=1,
            classes=2,
            single_head=True,
            seed=0,
            params=FrozenParams(encoder=folder),
        )
    model = model.to(device).eval()
    x = torch.rand(min(BATCH, images), *model.input_shape, device=device)
    with torch.no_grad():
        float(model.frozen_features(x).sum())
        began, total = time.perf_counter(), torch.zeros((), device=device)
        for _ in range(0, images, len(x)):
            total += model.frozen_features(x).sum()
        float(total)  # waits for the device
    seconds = time.perf_counter() - began
    print(json.dumps({"images": images, "a_second": images / seconds}))


if __name__ == "__main__":
    main()
