"""What a choice says about itself: its YAML's comment, its class's docstring."""

import inspect
import itertools
import re

# Headings whose indented blocks are lists, not formulas.
LISTS = ("Args", "Attributes", "Parameters", "Raises", "Returns", "Sub-modules")

IS_SOURCE = re.compile(r"arXiv \d|transformers (\d|\S*\.py)|[\w.-]+/[\w.-]+:\S+")


def package_of(yaml: str) -> str | None:
    """Where Hydra puts the choice: `model.norm` for `# @package model.norm`."""
    found = re.match(r"#\s*@package\s+(\S+)", yaml)
    return found.group(1) if found else None


def comment_of(yaml: str) -> tuple[str, str | None]:
    """The comment at the top of a part's file: what it is, and where that is from.

    The source stands behind the formula after a gap, or on a line of its own.
    """
    says, sources = [], []
    for line in comment_lines(yaml):
        what, gap, source = line.partition("   ")
        if IS_SOURCE.match(line):
            what, source = "", line
        if gap and "=" in source:  # a gap inside a formula
            what, source = line, ""
        if what:
            says.append(what)
        if source:
            sources.append(source.strip())
    return "\n".join(says), " ".join(sources) or None


def comment_lines(yaml: str) -> list[str]:
    """The comment at the top of a choice, without its placement."""
    lines = []
    for line in yaml.splitlines():
        if not line.startswith("#"):
            break
        if "@package" not in line:
            lines.append(line[1:].strip())
    return lines


def formula_of(made: type) -> str | None:
    """The first formula of a class's docstring, None if it has none.

    That is its first paragraph if it is one (`y = ...`), else the first indented block
    that is not a list of arguments or parameters.
    """
    paragraphs = _paragraphs(made)
    if not paragraphs:
        return None
    if re.match(r"\S+ = ", paragraphs[0]):
        return paragraphs[0]
    for before, block in itertools.pairwise(paragraphs):
        is_list = before.endswith(":") and before.startswith(LISTS)
        if block.startswith(" ") and not is_list:
            return inspect.cleandoc("\n" + block)
    return None


def source_of(made: type) -> str | None:
    """Where the mathematics is from, by the class's docstring."""
    for paragraph in _paragraphs(made):
        if paragraph.startswith("Source:"):
            text = paragraph.partition("Departure:")[0]
            return " ".join(text.removeprefix("Source:").split())
    return None


def _paragraphs(made: type) -> list[str]:
    """Blocks of a docstring: cut at empty lines, and where the indentation begins."""
    # Not inspect.getdoc, which would inherit, nor the one dataclasses make up.
    doc = vars(made).get("__doc__") or ""
    if doc.startswith(f"{made.__name__}("):
        return []
    blocks: list[list[str]] = [[]]
    for line in inspect.cleandoc(doc).splitlines():
        if not line.strip():
            blocks.append([])
            continue
        last = blocks[-1]
        if last and last[-1].endswith(":") and line.startswith(" "):
            blocks.append([])
        blocks[-1].append(line.rstrip())
    return ["\n".join(block) for block in blocks if block]
