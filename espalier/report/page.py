"""One HTML page about finished runs, with nothing to load from elsewhere. The words and looks are in `page.html`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from espalier.errors import InputError
from espalier.files import write_bytes
from espalier.report.picture import library_svg, module_users
from espalier.report.records import part
from espalier.report.runs import Finished, Row, summary


def page(runs: Sequence[Finished], title: str) -> str:
    environment = Environment(
        autoescape=True,
        loader=PackageLoader("espalier", "report"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"figure": _figure, "signed": _signed, "facts": _facts}
    sections = [_section(run, row) for run, row in zip(runs, summary(runs), strict=True)]
    taught = [section for section in sections if section["run"].taught]
    others = [section for section in sections if not section["run"].taught]
    return environment.get_template("page.html").render(title=title, runs=others, libraries=taught)


def write_page(runs: Sequence[Finished], path: Path, title: str) -> None:
    content = page(runs, title).encode("utf-8", "replace")
    try:
        write_bytes(path, content)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}); choose another place for the page.") from None


def _section(run: Finished, row: Row) -> dict[str, Any]:
    used = module_users(run)
    return {
        "run": run,
        "row": row,
        "name": run.folder.resolve().name,
        "picture": Markup(library_svg(run)),  # all text in it is escaped there
        "places": len(run.tasks) * len(run.blocks),
        "used": len(used),
        "idle": len(run.modules) - len(used),
        "data": part(run.settings, "data"),
        "protocol": part(run.settings, "protocol_details"),
        "versions": part(run.settings, "versions"),
        "hardware": part(run.settings, "hardware"),
        "searched_on": part(part(run.settings, "rebuilt_from"), "hardware"),
    }


def _facts(table: object) -> str:
    """The plain values of a table, in a line."""
    if not isinstance(table, dict):
        return ""
    return ", ".join(f"{key.replace('_', ' ')} {_words(value)}" for key, value in table.items() if value != "")


def _words(value: object) -> str:
    """Tables within the table only by their number: this is a line, the rest is in `run.json`."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | dict):
        plain = isinstance(value, list) and not any(isinstance(item, list | dict) for item in value)
        return " ".join(map(str, value)) if plain else f"of size {len(value)}"
    return str(value)


def _figure(value: float) -> str:
    """Three digits that count; whole numbers from a hundred on."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−") if round(value, 3) else "0.000"
