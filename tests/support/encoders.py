"""Tiny pre-trained encoders of many types, made at random, in folders of their own."""

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from fcl_flower.models.adapters import EnhancedTransformer, LoraParams, LoraTransformer
from fcl_flower.models.build import create_model
from fcl_flower.models.encoder import Transformer
from fcl_flower.models.pretrained import EncoderParams
from fcl_flower.models.prompts import PromptedTransformer
from fcl_flower.models.registry import EnhancedParams, PromptParams

WIDTH, BLOCKS, WORDS = 16, 3, 40
BOTTLENECK, CLASSES, RANK = 4, 5, 2

# The usual range of initial weights would let a wrong block pass for a right one.
_SIZE = {"num_hidden_layers": BLOCKS, "num_attention_heads": 2, "intermediate_size": 24}
_COMMON = {"hidden_size": WIDTH, "initializer_range": 0.5, **_SIZE}
_TEXT = {"vocab_size": WORDS, "max_position_embeddings": 20, **_COMMON}
_IMAGE = {"image_size": 12, "patch_size": 4, **_COMMON}
_OWN = {"vocab_size": WORDS, "initializer_range": 0.5}
_NO_SPECIAL = {f"{name}_token_id": None for name in ("bos", "eos", "pad", "cls", "sep")}

TEXTS = {
    "bert": ("Bert", _TEXT),
    "roberta": ("Roberta", {**_TEXT, "pad_token_id": 1}),
    "distilbert": (
        "DistilBert",
        {**_OWN, "dim": WIDTH, "n_layers": BLOCKS, "n_heads": 2, "hidden_dim": 24},
    ),
    "electra": ("Electra", {**_TEXT, "embedding_size": WIDTH}),
}
IMAGES = {
    "vit": ("ViT", _IMAGE),
    "deit": ("DeiT", _IMAGE),
    "dinov2": ("Dinov2", _IMAGE),
}
KNOWN = {**TEXTS, **IMAGES}
OTHER = {
    "albert": ("Albert", {**_TEXT, "embedding_size": WIDTH}),
    "gpt2": ("GPT2", {**_OWN, **_NO_SPECIAL, "n_embd": 16, "n_layer": 3, "n_head": 2}),
    "modernbert": ("ModernBert", {**_TEXT, **_NO_SPECIAL}),
    "electra-narrow": ("Electra", {**_TEXT, "embedding_size": 8}),
    "deberta-v2": ("DebertaV2", _TEXT),
    "mpnet": ("MPNet", _TEXT),
    "beit": ("Beit", _IMAGE),
    "convnext": ("ConvNext", {"image_size": 12, "hidden_sizes": [8] * 4}),
}


def saved(folder, kind, **changes):
    """Write an encoder of one kind into a folder; return the folder's name."""
    name, settings = {**KNOWN, **OTHER}[kind]
    config = getattr(transformers, f"{name}Config")(**{**settings, **changes})
    transformers.utils.logging.disable_progress_bar()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        transformers.AutoModel.from_config(config).save_pretrained(folder)
    return str(folder)


def reading_digits(folder, strategy, model="lora-vit", kind="vit", **sizes):
    """Return settings of a run on a tiny encoder that reads digits.

    ``sizes`` are parameters of the model; one block learns.
    """
    encoder = saved(folder, kind, image_size=8, num_channels=1)
    given = {"encoder": encoder, "num_blocks": 1, **sizes}
    return {
        **{"strategy": strategy, "model": model},
        **{f"model.{name}": value for name, value in given.items()},
        **{"dataset": "digits", "clients": 3, "rounds": 2},
    }


def saved_tokenizer(folder, words, longest=12):
    """Write a tokenizer of whole words, numbered in this order; return the folder.

    ``[CLS]`` is put in front of a text and ``[SEP]`` behind it.
    """
    numbers = {word: number for number, word in enumerate(words)}
    inner = Tokenizer(WordLevel(numbers, unk_token="[UNK]"))
    inner.pre_tokenizer = Whitespace()
    inner.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(name, numbers[name]) for name in ("[CLS]", "[SEP]")],
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=longest,
    ).save_pretrained(folder)
    return str(folder)


def inputs(kind):
    """Return two tokenized texts, the second shorter; or two images."""
    if kind in TEXTS:
        return torch.tensor([[3, 9, 5, 30, 7, 12], [8, 25, 10, 0, 0, 0]])
    return torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))


def plain(backbone):
    """Return the encoder in a folder as a body."""
    return Transformer(EncoderParams(encoder=backbone)).eval()


def enhanced(backbone, placement="both", blocks=0, learned=False):
    """Return the same with Enhancers, fresh or of random weights."""
    params = EnhancedParams(
        encoder=backbone, bottleneck=BOTTLENECK, placement=placement, num_blocks=blocks
    )
    body = EnhancedTransformer(params).eval()
    if learned:
        generator = torch.Generator().manual_seed(2)
        for parameter in body.enhancers.parameters():
            parameter.data.normal_(0, 0.3, generator=generator)
    return body


def lora(backbone, layers="all", blocks=0, learned=False):
    """Return the same with changes of low rank, still 0 or of random weights."""
    params = LoraParams(encoder=backbone, rank=RANK, layers=layers, num_blocks=blocks)
    torch.manual_seed(2)
    body = LoraTransformer(params).eval()
    if learned:
        for parameter in body.adapters.parameters():
            parameter.data.normal_(0, 0.3)
    return body


def prompted(backbone, blocks=0, seed=2, **params):
    """Return the same with prompts in its first blocks (0: all), of random weights."""
    given = {"components": 3, "prompt_length": 4, "num_blocks": blocks or BLOCKS}
    torch.manual_seed(seed)
    body = PromptedTransformer(PromptParams(encoder=backbone, **given | params)).eval()
    for parameter in body.pools.parameters():
        parameter.data.normal_(0, 0.5)
    return body


def lora_model(backbone, blocks=0, classes=CLASSES):
    """Return a network with a single head whose body has changes of low rank."""
    params = LoraParams(encoder=backbone, rank=RANK, num_blocks=blocks)
    return create_model(
        "lora-transformer",
        tasks=1,
        classes=classes,
        single_head=True,
        seed=3,
        params=params,
    )


def model(backbone, name="enhanced-transformer", single_head=True, blocks=0):
    """Return a network whose body is the encoder in a folder."""
    params = EncoderParams(encoder=backbone)
    if name.startswith("enhanced-"):
        params = EnhancedParams(
            encoder=backbone, bottleneck=BOTTLENECK, num_blocks=blocks
        )
    return create_model(
        name,
        tasks=2,
        classes=CLASSES,
        single_head=single_head,
        seed=3,
        params=params,
    )
