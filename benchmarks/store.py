"""Results that are kept beside the code: which commit, on what machine, what was measured.

They name no host and no path: they are committed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .revisions.checkout import commit

FOLDER = Path(__file__).parent / "results"


def store(found: Mapping[str, Any], folder: Path = FOLDER) -> Path:
    """Write what `report.as_json` returned, with the commit, into a file of its own."""
    head, changed = commit()
    now = datetime.now(UTC)
    parts = {
        # Why a client could not be installed may name folders and registries.
        name: part | {"missing": sorted(part["missing"])}
        for name, part in found["parts"].items()
    }
    about = {"commit": head, "changed": changed, "date": f"{now:%Y-%m-%d %H:%M} UTC"}
    folder.mkdir(exist_ok=True)
    file = folder / f"{now:%Y-%m-%d-%H%M}-{head[:7]}{'-changed' if changed else ''}.json"
    kept = {**found, "about": about | found["about"], "parts": parts}
    file.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    return file
