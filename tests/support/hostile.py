"""What somebody may have called a lock, a holder or a node, to do harm to people who read it."""

from __future__ import annotations

from typing import Final

HOSTILE: Final = (
    "<img src=x onerror=alert(1)>",
    '"><script>alert(1)</script>',
    "'><svg/onload=alert(1)>",
    "{{7*7}}{% now 'Y' %}",
    "javascript:alert(1)",
    "[bold red]x[/]",
    "[/]",
    "a\u202eb\u200b",
    "é" * 256,
)
