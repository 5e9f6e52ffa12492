"""Reports as one HTML file, by the library jinja2 of the extra `halimede[analyze]`."""

from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import Environment, StrictUndefined

Table = Sequence[Sequence[str]]
"""Rows of cells; the first is the heading."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a report: text, a table, a figure as SVG with the path of its PNG, and preformatted text."""

    title: str
    paragraphs: tuple[str, ...] = ()
    table: Table = ()
    svg: str = ""
    png: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What a report says, whatever its form."""

    title: str
    sections: tuple[Section, ...]


_TEMPLATE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{{ report.title }}</title>
<style>
body { font: 16px/1.5 sans-serif; margin: 2em auto; max-width: 64em; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 }
td, th { padding: .2em .8em; text-align: right; border-bottom: 1px solid #ddd }
td:first-child, th:first-child { text-align: left }
pre { background: #f4f4f4; padding: 1em; overflow: auto }
svg { max-width: 100%; height: auto }
</style>
<h1>{{ report.title }}</h1>
{% for section in report.sections %}
<h2>{{ section.title }}</h2>
{% for text in section.paragraphs %}<p>{{ text }}</p>
{% endfor %}
{% if section.table %}<table>
<tr>{% for cell in section.table[0] %}<th>{{ cell }}</th>{% endfor %}</tr>
{% for row in section.table[1:] %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>{% endif %}
{{ section.svg | safe }}
{% if section.code %}<pre>{{ section.code }}</pre>{% endif %}
{% endfor %}
</html>
"""


def html(report: Report) -> str:
    """The report as one page, which needs no other file."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_TEMPLATE).render(report=report)
