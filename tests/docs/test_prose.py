"""Grammar that a machine can check, in pages and in the docstrings of public names. codespell checks the spelling."""

import importlib
import inspect
import re

import pytest
from documents import NAMES, text_of

from website import reference

PAGES = [*NAMES, "CONTRIBUTING.md", "SECURITY.md"]
CODE = re.compile(r"```.*?```|^ *>>>.*?(?=\n\s*\n|\Z)|`+[^`]*`+", re.S | re.M)
# Words that begin with a vowel's letter and a consonant's sound, and the other way round.
CONSONANTS = r"(?:uint|uni(?!n)|us(?:e|u)|one\b|once|eu|ubiq|util)"
VOWELS = r"(?:hour|honest|heir)"
MISTAKES = {
    "a word twice": re.compile(r"\b([a-z]{2,})(?: +|\n *)\1\b", re.I),
    "a for an": re.compile(rf"\ba\s+(?!{CONSONANTS})[aeiou][a-z]{{3,}}"),
    "an for a": re.compile(rf"\ban\s+(?!{VOWELS})(?:[bcdfghjklmnpqrstvwxyz][a-z]{{3,}}|{CONSONANTS})"),
    "a space before a mark": re.compile(r"\w [,;:.!?](?=\s|$)"),
    "no space after a mark": re.compile(r"[a-z]{2}[,;][A-Za-z]{2}(?!\w*=)"),
    "a wrong form": re.compile(
        r"\b(?:1 (?:threads|cores|steps|programs|bits)|allows to|permits to|different than|"
        r"could of|its self|less (?:instructions|steps|bits|copies|tests)|an other|each of them are)\b"
    ),
}


def prose(text):
    """Without code; links are their words, and cells of tables sentences of their own."""
    text = CODE.sub("…", text)
    text = re.sub(r"!?\[(.*?)\]\([^)]*\)", r"\1", text)
    return re.sub(r"^\W+|\s*\|\s*", "\n\n", text, flags=re.M)


def mistakes(text):
    return [(name, found[0]) for name, rule in MISTAKES.items() for found in rule.finditer(prose(text))]


@pytest.mark.parametrize("name", PAGES)
def test_pages(name):
    assert mistakes(text_of(name)) == []


@pytest.mark.parametrize("name", list(reference.modules()))
def test_docstrings(name):
    """Of a public module and its public names."""
    module = importlib.import_module(name)
    things = [module, *(getattr(module, public) for public in module.__all__)]
    ours = (one for one in things if not str(getattr(one, "__module__", "")).startswith("torch."))
    assert [mistake for one in ours for mistake in mistakes(inspect.getdoc(one) or "")] == []


@pytest.mark.parametrize("name", PAGES)
def test_parentheses_are_closed(name):
    for paragraph in re.split(r"\n\s*\n", CODE.sub("", text_of(name))):
        assert paragraph.count("(") == paragraph.count(")"), paragraph


@pytest.mark.parametrize("name", PAGES)
def test_sentences_are_short(name):
    """At most 18 words on average over a page, half of them fewer than 20, none more than 40. Tables do not count."""
    text = re.sub(r"(?s:<!--.*?-->)|^[#|].*", "\n\n", text_of(name), flags=re.M)
    sentences = [one.split() for one in re.split(r"(?<=[.!?])\s+|\n\s*\n|^- ", prose(text), flags=re.M)]
    lengths = [len(words) for words in sentences if len(words) > 2]
    assert sum(lengths) <= 18 * len(lengths)
    assert sorted(lengths)[len(lengths) // 2] < 20
    assert [" ".join(words) for words in sentences if len(words) > 40] == []


@pytest.mark.parametrize(
    "text",
    [
        "It is is so.",
        "A tensor has a axis.",
        "an format",
        "a user, an hour, a unit and an unnamed one",
        "so , it",
        "1 threads",
    ],
)
def test_mistakes_are_found(text):
    assert len(mistakes(text)) == (0 if "hour" in text else 1)
