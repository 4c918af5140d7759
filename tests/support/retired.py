"""The words that neither a page nor a docstring uses any more; the glossary has those to use."""

from __future__ import annotations

import re

EVERYWHERE = (  # as identifiers, and in prose
    r"stands?|stood|standing|parked|lanes?|alarms?|inquir(?:y|ies)|rotas?|ghosts?|crews?"
    r"|tenanc(?:y|ies)|twins?"
)
RETIRED = re.compile(rf"\b({EVERYWHERE}|in line|(?:comes?|came) of|whoever)\b", re.IGNORECASE)


def retired(text: str) -> list[str]:
    """The retired words of a text, outside of code."""
    prose = re.sub(r"^ *```.*?^ *```$|`+[^`]*`+", "", text, flags=re.DOTALL | re.MULTILINE)
    return RETIRED.findall(prose)
