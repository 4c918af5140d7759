"""How Sphinx builds these pages (make docs)."""

import os
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

import django
from docutils import nodes
from sphinx.application import Sphinx

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

# -- llms.txt: what a language model should know of these pages; see https://llmstxt.org

SITE = "https://django-redlock.readthedocs.io/en/latest"
PARTS = {"": "Begin", "how-to": "How to", "explanation": "Explanation", "reference": "Reference"}


def write_llms_txt(app: Sphinx, error: Exception | None) -> None:
    """List each page with its address and its first sentence, beside the pages."""
    if error or app.builder.name != "html":
        return
    parts: dict[str, list[str]] = {folder: [] for folder in PARTS}
    for page in sorted(app.env.found_docs):
        tree = app.env.get_doctree(page)
        title = next(iter(tree.findall(nodes.title))).astext()
        first = next(iter(tree.findall(nodes.paragraph)), nodes.paragraph()).astext()
        sentence = " ".join(first.split()).partition(". ")[0].rstrip(".:")
        folder = page.rpartition("/")[0]
        parts[folder].append(f"- [{title}]({SITE}/{page}.html): {sentence}.")
    lines = [f"# {project}", "", "> Locks for Django that hold across processes and machines."]
    for folder, listed in parts.items():
        lines += ["", f"## {PARTS[folder]}", "", *listed]
    Path(app.outdir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.connect("build-finished", write_llms_txt)
