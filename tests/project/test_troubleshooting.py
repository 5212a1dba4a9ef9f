"""Each message that the page on troubleshooting explains is one of the code's."""

import ast
import re
from pathlib import Path

import pytest

from fcl_flower.core import failures

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "howto" / "troubleshooting.md").read_text()
TABLES = TEXT.partition("| message | cause, and what to do |")[2]
MESSAGES = re.findall(r"^\| `(.*?)` \|", TABLES, re.MULTILINE)


def said(tree):
    """Yield the strings of a module, with … for what is put into them."""
    inside = set()
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr():
                inside.update(map(id, node.values))
                parts = [getattr(part, "value", "") for part in node.values]
                yield "".join(p if isinstance(p, str) else "…" for p in parts)
            case ast.Constant(str(text)) if id(node) not in inside:
                yield re.sub(r"%(\.\d+)?[sdrf]", "…", text)


@pytest.fixture(scope="module")
def sentences():
    paths = (ROOT / "fcl_flower").rglob("*.py")
    return [text for path in paths for text in said(ast.parse(path.read_text()))]


def test_the_strings_of_a_module_are_found_with_their_holes():
    code = 'a = f"one {b} two " "three"\nlog("four %s five", b)\n'
    assert set(said(ast.parse(code))) == {"one … two three", "four … five"}


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_in_the_code(message, sentences):
    assert any(message in sentence for sentence in sentences)


def test_every_reason_for_which_a_client_is_left_out_is_explained():
    reasons = {
        value
        for name, value in vars(failures).items()
        if name.isupper() and not name.startswith("_") and isinstance(value, str)
    }
    assert len(reasons) == 7
    assert reasons <= set(MESSAGES)
