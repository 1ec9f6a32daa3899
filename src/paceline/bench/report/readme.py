"""The results section of a document, made from the summary of a report.

The text between `<!-- results: PATH -->` and `<!-- /results -->` is replaced; PATH is that of the summary, seen from
the document's folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.bench.report.cells import ALL, Cell
from paceline.bench.report.tables import by_set, markdown, overall, titles
from paceline.errors import CheckpointError, InputError

_SECTION = re.compile(r"(<!-- results: (\S+) -->\n).*?(<!-- /results -->)", re.DOTALL)


def with_results(document: str, folder: Path) -> str:
    """The document with every section of results made anew; `folder` is where it lies.

    Raises:
        InputError: it has no such section.
        CheckpointError: a summary that is missing or of another form.
    """
    if not _SECTION.search(document):
        raise InputError("there is no '<!-- results: PATH -->' with a '<!-- /results -->' after it; add them.")
    return _SECTION.sub(lambda found: f"{found[1]}{section(folder / found[2])}{found[3]}", document)


def section(path: Path) -> str:
    """Tables of a summary, and a sentence that says where they come from.

    Raises:
        CheckpointError: the file is missing or of another form.
    """
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        cells = [_cell(row) for row in summary["cells"]]
        provenance = summary["provenance"]
        parts = [_sentence(provenance[0], int(summary["answers"]))]
        for asked, title in titles(cells).items():
            own = [cell for cell in cells if cell.request == asked]
            parts += [f"{title}, all prompts:", markdown(overall(own)).rstrip()]
            if len({cell.set_name for cell in own}) > 2:
                parts += ["By prompt set:", markdown(by_set([c for c in own if c.set_name != ALL])).rstrip()]
        parts += summary["warnings"]
    except OSError as error:
        raise CheckpointError(f"the summary {str(path)!r} cannot be read: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise CheckpointError(f"{str(path)!r} is no summary of a report ({error!r}); make it anew.") from error
    return "\n\n".join(parts) + "\n"


def _cell(row: Mapping[str, Any]) -> Cell:
    """`as_row` spreads what was asked among the rest."""
    own = {name: row[name] for name in Cell.__dataclass_fields__ if name != "asked"}
    return Cell(asked={name: float(value) for name, value in row.items() if name not in own}, **own)


def _sentence(facts: Mapping[str, Any], answers: int) -> str:
    target = Path(str(facts["target"])).name
    most = f" of at most {facts['max_tokens']} tokens" if "max_tokens" in facts else ""
    return (
        f"{target}, {facts['dtype']}, batch {facts['batch']}, {answers} answers{most}; {facts['processor']} "
        f"({facts['cpu_capability']}), {facts['threads']} threads, torch {facts['torch']}, transformers "
        f"{facts['transformers']}. Speed-ups are over `plain`: medians of answers, paired, with 95% bootstrap "
        "intervals; tau is tokens per round, bonus included."
    )
