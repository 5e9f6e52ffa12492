"""Reports as PDF, by the library fpdf2 of the extra `halimede[analyze]`."""

from pathlib import Path

from fpdf import FPDF
from fpdf.enums import XPos, YPos

from halimede.analyze.pages import Report, Section

_NEXT = {"new_x": XPos.LMARGIN, "new_y": YPos.NEXT}


def write(report: Report, path: Path) -> None:
    """Raises OSError."""
    document = FPDF(format="A4")
    document.set_title(report.title)
    document.set_creator("halimede analyze")
    document.add_page()
    document.set_font("Helvetica", "B", 18)
    document.multi_cell(0, 10, _plain(report.title), **_NEXT)
    for section in report.sections:
        _write(document, section)
    document.output(str(path))


def _write(document: FPDF, section: Section) -> None:
    document.ln(4)
    document.set_font("Helvetica", "B", 13)
    document.multi_cell(0, 8, _plain(section.title), **_NEXT)
    document.set_font("Helvetica", "", 10)
    for text in section.paragraphs:
        document.multi_cell(0, 5.5, _plain(text), **_NEXT)
        document.ln(1)
    if section.table:
        document.set_font("Helvetica", "", 7)
        with document.table(line_height=4.5, text_align="RIGHT") as table:
            for row in section.table:
                table.row([_plain(cell) for cell in row])
    if section.png:
        document.image(section.png, w=document.epw)
    if section.code:
        document.set_font("Courier", "", 8)
        document.multi_cell(0, 4, _plain(section.code), **_NEXT)


def _plain(text: str) -> str:
    """Text with the characters that the fonts of every reader have."""
    return text.encode("latin-1", "replace").decode("latin-1")
