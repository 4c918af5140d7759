"""How Sphinx builds these pages (make docs)."""

import os
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

import django

# autodoc imports the package, and parts of it need a configured Django.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

project = "django-redlock"
author = "django-redlock contributors"
copyright = f"2026, {author}"
release = version = installed_version(project)

# No intersphinx: the build needs no network.
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = [
    "_build",
    "explanation/museum-table.md",  # this one and the next are included
    "explanation/performance-figures.md",
]
html_theme = "furo"
html_title = f"{project} {release}"

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
napoleon_numpy_docstring = False

myst_enable_extensions = ["colon_fence", "deflist"]
# Links to a heading of another page are checked down to this level.
myst_heading_anchors = 3
