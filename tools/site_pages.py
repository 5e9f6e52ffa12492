"""A hook of mkdocs: in `nav`, `folder/*` stands for the pages of a folder that no other line names."""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from typing import Any


def on_files(files: Any, config: Any) -> Any:
    """mkdocs calls this when it knows all files, and before it makes the navigation."""
    pages = [file.src_uri for file in files.documentation_pages()]
    named = set(_names(config["nav"]))
    config["nav"] = _filled(config["nav"], [page for page in pages if page not in named])
    return files


def _names(nav: Iterable[Any]) -> Iterator[str]:
    for each in nav:
        if isinstance(each, str):
            yield each
        else:
            for below in each.values():
                yield from [below] if isinstance(below, str) else _names(below)


def _filled(nav: Iterable[Any], left: list[str]) -> list[Any]:
    """The navigation with each pattern replaced by the pages in `left` that fit, which leave `left`. A section that
    would be empty is left out."""
    filled: list[Any] = []
    for each in nav:
        if isinstance(each, str) and each.endswith("/*"):
            fitting = sorted(page for page in left if fnmatch(page, each))
            left[:] = [page for page in left if page not in fitting]
            filled += fitting
        elif isinstance(each, dict):
            for title, below in each.items():
                inner = below if isinstance(below, str) else _filled(below, left)
                filled += [{title: inner}] if inner else []
        else:
            filled.append(each)
    return filled
